//! Processes played by tasks of shuttle, which chooses who goes next at each step in shared memory,
//! and which of them die where.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_session::step::{self, Stage};
use nacre_session::{Geometry, Session, SlotRef};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

const GEOMETRY: Geometry = Geometry {
    units: 64,
    max_objects: 64,
    lanes: 2,
};
/// Steps after which a mortal process is dead at the latest.
const LONGEST_LIFE: u32 = 60;
const IMMORTAL: u32 = u32::MAX;

thread_local! {
    static DEAD: RefCell<Vec<SlotRef>> = const { RefCell::new(Vec::new()) };
    /// The play is judged: who is left runs to its end, unseen.
    static OVER: Cell<bool> = const { Cell::new(false) };
    /// Whether who sleeps wakes up by itself.
    static ROUNDS_END: Cell<bool> = const { Cell::new(true) };
    static WAKES: Cell<u64> = const { Cell::new(0) };
}

shuttle::thread_local! {
    static SLOT: Cell<Option<SlotRef>> = Cell::new(None);
    static LEFT: Cell<u32> = Cell::new(IMMORTAL);
}

struct Shuttle;

impl Stage for Shuttle {
    fn point(&self) {
        if OVER.get() {
            return;
        }
        thread::yield_now();
        let left = LEFT.with(Cell::get);
        LEFT.with(|cell| cell.set(left.saturating_sub(u32::from(left != IMMORTAL))));
        let Some(me) = SLOT.with(Cell::get) else {
            return;
        };
        if left == 0 && !self.is_dead(me) {
            DEAD.with_borrow_mut(|dead| dead.push(me));
        }
        while self.is_dead(me) && !OVER.get() {
            thread::yield_now();
        }
    }

    fn is_dead(&self, slot: SlotRef) -> bool {
        DEAD.with_borrow(|dead| dead.contains(&slot))
    }

    fn sleep(&self) -> bool {
        let before = WAKES.get();
        self.point();
        while !ROUNDS_END.get() && WAKES.get() == before && !OVER.get() {
            self.point();
        }
        WAKES.get() == before
    }

    fn wake(&self) {
        WAKES.set(WAKES.get() + 1);
    }
}

/// How often a process dies.
#[derive(Clone, Copy, PartialEq)]
pub enum Fate {
    Immortal,
    Mortal,
}

/// One schedule of one play.
pub struct Play {
    pub session: Arc<Session>,
    tasks: Vec<(SlotRef, JoinHandle<()>)>,
    finished: Arc<AtomicUsize>,
}

/// Whether a process is dead at this moment.
pub fn is_dead(who: SlotRef) -> bool {
    Shuttle.is_dead(who)
}

/// Plays `scene` under so many random schedules.
pub fn explore(schedules: usize, scene: fn(&mut Play)) {
    shuttle::check_random(
        move || {
            DEAD.take();
            OVER.set(false);
            ROUNDS_END.set(true);
            step::play(Some(&Shuttle));
            let mut play = Play {
                session: Arc::new(Session::memory(GEOMETRY).unwrap()),
                tasks: Vec::new(),
                finished: Arc::default(),
            };
            scene(&mut play);
            play.end();
            step::play(None);
        },
        schedules,
    );
}

impl Play {
    /// From now on only a wake ends a sleep, however long it lasts.
    pub fn sleep_without_rounds(&self) {
        ROUNDS_END.set(false);
    }

    /// One more process, with a slot of its own.
    pub fn start(&mut self, fate: Fate, role: impl FnOnce(&Session, SlotRef) + Send + 'static) {
        let me = self.session.claim_slot().unwrap();
        self.start_thread(fate, me, role);
    }

    /// One more thread of the process in slot `me`; they die together.
    pub fn start_thread(
        &mut self,
        fate: Fate,
        me: SlotRef,
        role: impl FnOnce(&Session, SlotRef) + Send + 'static,
    ) {
        let life = match fate {
            Fate::Immortal => IMMORTAL,
            Fate::Mortal => thread_rng().gen_range(0..LONGEST_LIFE),
        };
        let (session, finished) = (Arc::clone(&self.session), Arc::clone(&self.finished));
        let task = thread::spawn(move || {
            SLOT.with(|slot| slot.set(Some(me)));
            LEFT.with(|left| left.set(life));
            role(&session, me);
            LEFT.with(|left| left.set(IMMORTAL));
            finished.fetch_add(1, Ordering::SeqCst);
            while !OVER.get() {
                thread::yield_now();
            }
        });
        self.tasks.push((me, task));
    }

    /// Waits until every process has come to its end or died.
    pub fn wait(&self) {
        let dead = || self.tasks.iter().filter(|(me, _)| is_dead(*me)).count();
        while self.finished.load(Ordering::SeqCst) + dead() < self.tasks.len() {
            thread::yield_now();
        }
    }

    fn end(self) {
        OVER.set(true);
        for (_, task) in self.tasks {
            task.join().unwrap();
        }
    }
}
