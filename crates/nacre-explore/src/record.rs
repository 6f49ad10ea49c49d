//! Doing the operations of a plan once, with everything that happens to the medium noted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::WriteMode;

use crate::action::{Action, find};
use crate::bench::{Attached, Bench};
use crate::ground::Ground;
use crate::plan::SequencePlan;
use crate::sabotage::Sabotage;
use crate::visible::{Visible, look, look_below};
use crate::workload::HOMES;
use nacre_testkit::medium::Difference;
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, set_lane};
use nacre_testkit::turns::{Order, Turns};

/// What happened.
pub struct Recording {
    /// While the pool was attached.
    pub lead: Vec<Event>,
    /// While the operations ran.
    pub events: Vec<Event>,
    /// What each program saw before and after each of its operations.
    pub seen: Vec<Vec<Visible>>,
}

/// Records a plan. `None`: programs that ran side by side had to wait for each other, so their
/// order was chance.
pub fn record(
    stage: &mut Bench,
    plan: &SequencePlan,
    sabotage: Sabotage,
) -> Result<Option<Recording>, String> {
    let attached = stage.attach(&Difference::new(), plan.mode)?;
    let recorder = stage.recorder();
    let mut recording = match &plan.lanes[..] {
        [_] => one_program(stage, &recorder, attached, plan).map(Some),
        _ => side_by_side(stage, &recorder, attached, plan, sabotage),
    };
    if let Ok(Some(recording)) = &mut recording {
        sabotage.plant(&mut recording.lead);
        sabotage.plant(&mut recording.events);
    }
    recording
}

fn one_program(
    stage: &mut Bench,
    recorder: &Recorder,
    attached: Attached,
    plan: &SequencePlan,
) -> Result<Recording, String> {
    recorder.start();
    let mut pool = Some(attached.fs);
    let run = || -> Result<Vec<Visible>, String> {
        let mut seen = Vec::new();
        for (salt, action) in (1..).zip(&plan.lanes[0]) {
            let Some(fs) = pool.take() else {
                return Err("there is no pool".into());
            };
            seen.push(look(&fs)?);
            // Each operation by another thread than the one before: its fences do nothing for that
            // one.
            set_lane(salt as usize % 2);
            let fs = match action {
                Action::Remount => remount(fs, plan.mode)?,
                _ => {
                    // An operation that cannot be done is one that changes nothing.
                    let _ = action.run(Ground::of(&fs), salt);
                    fs
                }
            };
            recorder.mark_done();
            pool = Some(fs);
        }
        seen.extend(pool.as_ref().map(look).transpose()?);
        Ok(seen)
    };
    let seen = catch_unwind(AssertUnwindSafe(run));
    set_lane(0);
    let events = recorder.stop();
    let Some(fs) = pool else {
        return stage.renew(match seen {
            Ok(Err(why)) => why,
            _ => "an operation panics".into(),
        });
    };
    stage.take_back(fs, &events);
    Ok(Recording {
        lead: attached.events,
        events,
        seen: vec![seen.unwrap_or_else(|_| Err("an operation panics".into()))?],
    })
}

fn remount(fs: Fs, mode: WriteMode) -> Result<Fs, String> {
    let volume = fs
        .into_store()
        .close()
        .map_err(|e| format!("detach: {e}"))?;
    Bench::attach_clean(volume, mode)
}

fn side_by_side(
    stage: &mut Bench,
    recorder: &Arc<Recorder>,
    attached: Attached,
    plan: &SequencePlan,
    sabotage: Sabotage,
) -> Result<Option<Recording>, String> {
    let order = match plan.turns.is_empty() {
        true => Order::Random(Random::new(plan.seed, 1)),
        false => Order::Given(plan.turns.iter().copied().collect()),
    };
    let turns = Arc::new(Turns::new(plan.lanes.len(), order));
    recorder.set_turns(Some(Arc::clone(&turns)));
    recorder.start();
    let fs = &attached.fs;
    let seen: Vec<_> = std::thread::scope(|scope| {
        let lanes = plan.lanes.iter().enumerate();
        let threads: Vec<_> = lanes
            .map(|(lane, actions)| {
                let turns = &turns;
                scope.spawn(move || {
                    set_lane(lane);
                    sabotage.switch();
                    turns.begin(lane);
                    let run = || one_of_several(fs, recorder, lane, actions);
                    let seen = catch_unwind(AssertUnwindSafe(run));
                    turns.end(lane);
                    seen
                })
            })
            .collect();
        threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    let events = recorder.stop();
    recorder.set_turns(None);
    stage.take_back(attached.fs, &events);
    if turns.was_stuck() {
        return Ok(None);
    }
    let seen: Result<_, String> = seen
        .into_iter()
        .map(|lane| match lane {
            Ok(Ok(seen)) => seen,
            _ => Err("an operation panics".into()),
        })
        .collect();
    Ok(Some(Recording {
        lead: attached.events,
        events,
        seen: seen?,
    }))
}

fn one_of_several(
    fs: &Fs,
    recorder: &Recorder,
    lane: usize,
    actions: &[Action],
) -> Result<Vec<Visible>, String> {
    let root = find(Ground::of(fs), HOMES[lane]).map_err(|e| e.to_string())?;
    let ground = Ground { fs, root };
    let mut seen = vec![look_below(ground)?];
    for (salt, action) in (1 + 16 * lane as u64..).zip(actions) {
        let _ = action.run(ground, salt);
        recorder.mark_done();
        seen.push(look_below(ground)?);
    }
    Ok(seen)
}
