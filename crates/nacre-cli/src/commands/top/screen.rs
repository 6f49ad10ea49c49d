//! Reports on a terminal, drawn fresh at each look.

use super::rates::{Rates, processor_percent, rates};
use super::sample::{Chosen, Facts, PoolSample, Program, Sample};
use crate::failure::{Failure, Result};
use crate::output::harmless;
use crate::size;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::line;
use ratatui::text::Line;
use ratatui::widgets::{Block, LineGauge, Paragraph, Row, Sparkline, Table};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// So many looks back the curves go, at most.
const REMEMBERED: usize = 512;
const CURVE_HEIGHT: u16 = 2;

/// What curves show: changes and commits a second of each pool, the newest first.
#[derive(Default)]
struct History(HashMap<PathBuf, VecDeque<(u64, u64)>>);

/// What is shown.
struct Shown<'s> {
    before: Option<&'s Sample>,
    now: &'s Sample,
    history: &'s History,
}

/// Shows reports until there were enough, or the user wants no more.
pub fn show(chosen: &Chosen, every: Duration, times: u64) -> Result<()> {
    let first = chosen.look()?;
    let failed = |error| Failure::io("the terminal", error);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let done = watch(&mut terminal, chosen, first, (every, times));
    ratatui::try_restore().map_err(failed)?;
    done
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    chosen: &Chosen,
    first: Sample,
    (every, times): (Duration, u64),
) -> Result<()> {
    let failed = |error| Failure::io("the terminal", error);
    let (mut before, mut now, mut history) = (None, first, History::default());
    for _ in 0..=times {
        let shown = Shown {
            before: before.as_ref(),
            now: &now,
            history: &history,
        };
        let until = Instant::now() + every;
        loop {
            terminal.draw(|frame| shown.draw(frame)).map_err(failed)?;
            match next_event(until).map_err(failed)? {
                None => break,
                Some(event) if is_end(&event) => return Ok(()),
                Some(_) => {}
            }
        }
        let newer = chosen.look()?;
        history.add(&now, &newer);
        before = Some(std::mem::replace(&mut now, newer));
    }
    Ok(())
}

fn next_event(until: Instant) -> std::io::Result<Option<Event>> {
    let rest = until.saturating_duration_since(Instant::now());
    match event::poll(rest)? {
        true => event::read().map(Some),
        false => Ok(None),
    }
}

fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent {
        code, modifiers, ..
    }) = event
    else {
        return false;
    };
    let is_control = modifiers.contains(KeyModifiers::CONTROL);
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => is_control,
        _ => false,
    }
}

impl History {
    fn add(&mut self, before: &Sample, now: &Sample) {
        let passed = now.at - before.at;
        for pool in &now.pools {
            let rates = rates(before, pool, passed).unwrap_or_default();
            let commits = rates.disk.map_or(0.0, |disk| disk.commits);
            let of_pool = self.0.entry(pool.id.clone()).or_default();
            of_pool.push_front((rates.changes as u64, commits as u64));
            of_pool.truncate(REMEMBERED);
        }
    }

    /// The newest of them last, for a curve of some width.
    fn curve(&self, id: &Path, width: u16, which: impl Fn(&(u64, u64)) -> u64) -> Vec<u64> {
        let known = self.0.get(id).into_iter().flatten();
        let mut curve: Vec<u64> = known.take(width.into()).map(which).collect();
        curve.reverse();
        curve
    }
}

impl Shown<'_> {
    fn draw(&self, frame: &mut Frame<'_>) {
        let heights = self
            .now
            .pools
            .iter()
            .map(|pool| Constraint::Length(height(pool)));
        let heights = heights.chain([Constraint::Min(1)]);
        let areas = Layout::vertical(heights).split(frame.area());
        for (pool, area) in self.now.pools.iter().zip(areas.iter()) {
            self.draw_pool(frame, pool, *area);
        }
        let last = areas.last().copied().unwrap_or_default();
        let help = match self.now.pools.is_empty() {
            true => "no pool is in use; q ends",
            false => "q ends",
        };
        frame.render_widget(Line::from(help).dim(), last);
    }

    fn draw_pool(&self, frame: &mut Frame<'_>, pool: &PoolSample, area: Rect) {
        let block = Block::bordered().title(title(pool));
        let inside = block.inner(area);
        frame.render_widget(block, area);
        match &pool.facts {
            Ok(facts) => self.draw_facts(frame, (pool, facts), inside),
            Err(why) => frame.render_widget(Paragraph::new(harmless(why)), inside),
        }
    }

    fn draw_facts(&self, frame: &mut Frame<'_>, of: (&PoolSample, &Facts), inside: Rect) {
        let (pool, facts) = of;
        let gauges = gauges(facts);
        let lines = lines(facts);
        let heights = [
            Constraint::Length(gauges.len() as u16),
            Constraint::Length(lines),
            Constraint::Length(lines * CURVE_HEIGHT),
            Constraint::Min(0),
        ];
        let [above, rates_area, curves_area, below] = Layout::vertical(heights).areas(inside);
        let rows = Layout::vertical(gauges.iter().map(|_| Constraint::Length(1))).split(above);
        for (gauge, row) in gauges.into_iter().zip(rows.iter()) {
            frame.render_widget(gauge, *row);
        }
        let known = self
            .before
            .and_then(|before| rates(before, pool, self.passed(before)));
        frame.render_widget(Paragraph::new(sentences(known)), rates_area);
        self.draw_curves(frame, of, curves_area);
        frame.render_widget(self.programs(pool), below);
    }

    fn passed(&self, before: &Sample) -> Duration {
        self.now.at - before.at
    }

    fn draw_curves(&self, frame: &mut Frame<'_>, (pool, facts): (&PoolSample, &Facts), area: Rect) {
        let heights = std::iter::repeat_n(Constraint::Length(CURVE_HEIGHT), lines(facts).into());
        let areas = Layout::vertical(heights).split(area);
        let curves = [
            ("changes/s", Color::Cyan, self.curve(pool, area, |it| it.0)),
            (
                "commits/s",
                Color::Yellow,
                self.curve(pool, area, |it| it.1),
            ),
        ];
        for ((name, color, curve), area) in curves.iter().zip(areas.iter()) {
            draw_curve(frame, (name, *color), curve, *area);
        }
    }

    fn curve(&self, pool: &PoolSample, area: Rect, which: impl Fn(&(u64, u64)) -> u64) -> Vec<u64> {
        self.history.curve(&pool.id, curve_width(area), which)
    }

    fn programs(&self, pool: &PoolSample) -> Table<'static> {
        let percent = |one: &Program| {
            self.before.map_or(0.0, |before| {
                processor_percent(before, one, self.passed(before))
            })
        };
        let mut programs: Vec<(f64, &Program)> = pool
            .programs
            .iter()
            .map(|one| (percent(one), one))
            .collect();
        programs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let rows = programs.into_iter().map(|(percent, one)| {
            let mounts = harmless(&one.mounts.join(", "));
            let percent = format!("{percent:.0}");
            Row::new([one.pid.to_string(), percent, harmless(&one.command), mounts])
        });
        let widths = [8, 6, 16].map(Constraint::Length);
        let widths = widths.into_iter().chain([Constraint::Min(8)]);
        Table::new(rows, widths).header(Row::new(["PID", "CPU %", "PROGRAM", "AT"]).bold())
    }
}

/// Room for the names of curves.
const NAMES: u16 = 11;

fn curve_width(area: Rect) -> u16 {
    area.width.saturating_sub(NAMES)
}

fn draw_curve(frame: &mut Frame<'_>, (name, color): (&str, Color), curve: &[u64], area: Rect) {
    let widths = [Constraint::Length(NAMES), Constraint::Min(0)];
    let [left, right] = Layout::horizontal(widths).areas(area);
    let most = curve.iter().max().copied().unwrap_or(0);
    let text = vec![
        Line::from(name.to_string()),
        Line::from(format!("<= {most}")).dim(),
    ];
    frame.render_widget(Paragraph::new(text), left);
    let sparkline = Sparkline::default()
        .data(curve)
        .style(Style::new().fg(color));
    frame.render_widget(sparkline, right);
}

fn title(pool: &PoolSample) -> Line<'static> {
    let name = pool.name();
    let Ok(facts) = &pool.facts else {
        return Line::from(format!(" {name} ")).bold();
    };
    let copies = match facts.copies.len() {
        0 => String::new(),
        copies => format!(", {copies} copies"),
    };
    let mut title = vec![format!(" {name}: {}{copies} ", facts.mode).bold()];
    let warnings = facts.warnings().into_iter();
    title.extend(warnings.map(|text| format!("{text} ").red().bold()));
    Line::from(title)
}

fn gauges(facts: &Facts) -> Vec<LineGauge<'static>> {
    let used = facts.bytes.saturating_sub(facts.free_bytes);
    let mut gauges = vec![gauge("used", Color::Green, (used, facts.bytes))];
    if let Some(cache) = &facts.cache {
        let room = cache.room_bytes;
        gauges.push(gauge("in memory", Color::Blue, (cache.memory_bytes, room)));
        gauges.push(gauge("not on disk", Color::Red, (cache.dirty_bytes, room)));
    }
    gauges
}

fn gauge(name: &str, color: Color, (part, whole): (u64, u64)) -> LineGauge<'static> {
    let ratio = (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
    let amounts = format!("{} of {}", size::human(part), size::human(whole));
    LineGauge::default()
        .label(format!("{name:<12}{amounts:<26}"))
        .filled_symbol(line::THICK_HORIZONTAL)
        .filled_style(Style::new().fg(color))
        .ratio(ratio)
}

fn sentences(rates: Option<Rates>) -> Vec<Line<'static>> {
    let Some(rates) = rates else {
        return vec![Line::from("looking ...").dim()];
    };
    let changes = format!("{:.0} changes/s", rates.changes);
    let Some(disk) = rates.disk else {
        return vec![Line::from(changes)];
    };
    let bytes = |bytes: f64| size::human(bytes as u64);
    let memory = disk
        .memory_part()
        .map(|part| format!(", {part:.1} % of it from memory"));
    let each = disk.commit_ms.map(|ms| format!(" of {ms:.2} ms"));
    let first = format!(
        "{changes}, {:.0} commits/s{}; programs read {}/s{}",
        disk.commits,
        each.unwrap_or_default(),
        bytes(disk.read_bytes),
        memory.unwrap_or_default()
    );
    let second = format!(
        "disk: {}/s to the journal, {}/s home, {}/s read",
        bytes(disk.journal_bytes),
        bytes(disk.home_bytes),
        bytes(disk.loaded_bytes)
    );
    vec![Line::from(first), Line::from(second)]
}

/// Rows that a pool takes, with its border.
fn height(pool: &PoolSample) -> u16 {
    let programs = pool.programs.len() as u16;
    match &pool.facts {
        Ok(facts) => {
            2 + gauges(facts).len() as u16 + lines(facts) * (1 + CURVE_HEIGHT) + 1 + programs
        }
        Err(_) => 3,
    }
}

/// Lines of text, and curves.
fn lines(facts: &Facts) -> u16 {
    1 + u16::from(facts.cache.is_some())
}
