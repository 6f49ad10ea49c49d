//! `nacre wear`: where a pool's device was worn, and how much.

mod hottest;

use crate::commands::default_pool;
use crate::emulated::{self, kept_beside};
use crate::failure::{Failure, Result};
use crate::plot::{COLUMNS, HeatMap, Labels, Line, Scale, chart, escape, heat_map, heat_map_png};
use crate::{output, page, size};
use clap::Args;
use hottest::{HotPlace, hottest, table};
use nacre_emulator::{Emulation, Granule, Profile, Spread, Wear};
use nacre_types::StoreKind;
use nacre_volume::{Access, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre run --wear -- make                       count while a program runs on the default pool
  nacre run --emulate pcm --wear=256 -- make     as slow as PCM, counted by 256 bytes
  nacre wear                                     then: totals, amplification, inequality, lifetime
  nacre wear --hottest my.pool                   and the files that are behind the hottest places
  nacre wear --html wear.html my.pool            with heat maps and the sorted curve
  nacre wear --png wear.png                      the heat map alone
  nacre wear --csv before.csv; ...; nacre wear --before before.csv

Counters are kept until the next `nacre run --wear` or `--emulate` of the pool, `nacre wear --reset`
or a restart of the system; with `nacre run --wear --keep` they go on from run to run, in POOL.wear,
which survives restarts. A granule is counted once for each time that something in it is made
durable.";

const NAMES: [&str; 3] = ["data", "metadata", "log"];

/// Show where a pool's device was worn
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool [default: the default pool]
    #[arg(value_name = "POOL")]
    pool: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
    /// Project the lifetime of this device instead of the one that was emulated
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Print the granules that were written most, and the files that lie there now
    #[arg(long, value_name = "COUNT", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    hottest: Option<usize>,
    /// Forget what was counted
    #[arg(long)]
    reset: bool,
}

/// What is made of the counts.
#[derive(Debug, Args)]
pub struct Outputs {
    /// Report as JSON
    #[arg(long)]
    json: bool,
    /// Write the count of each granule that was written
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a heat map of all kinds together
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The same as PNG
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Write a page with heat maps of each kind and the sorted curve
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Compare with counts that were written by --csv
    #[arg(long, value_name = "CSV")]
    before: Option<PathBuf>,
}

#[derive(Serialize)]
struct SpreadReport {
    granules_written: u64,
    writes: u64,
    most: u64,
    mean: f64,
    most_over_mean: f64,
    gini: f64,
}

#[derive(Serialize)]
struct KindReport {
    kind: &'static str,
    stores: u64,
    bytes: u64,
    line_bytes: u64,
    spread: SpreadReport,
}

#[derive(Serialize)]
struct Report {
    profile: String,
    granularity: u64,
    granules: u64,
    seconds: f64,
    kinds: Vec<KindReport>,
    all: SpreadReport,
    /// Bytes of all kinds over bytes of data.
    amplification_software: f64,
    /// Bytes of the cache lines flushed over bytes of all kinds.
    amplification_lines: f64,
    /// Bytes that the cells wrote over bytes of the cache lines flushed.
    amplification_device: f64,
    ewr: f64,
    cell_bytes: u64,
    reads: u64,
    read_bytes: u64,
    lifetime_seconds: Option<f64>,
    /// What was counted earlier, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<Counted>,
    /// The granules that were written most, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hottest: Vec<HotPlace>,
}

/// How writes of a kind are spread, or those of all.
#[derive(Serialize)]
struct Counted {
    kind: &'static str,
    spread: SpreadReport,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = default_pool::unless(arguments.pool.as_ref())?;
    let volume = Volume::open(&pool, Access::ReadOnly)?;
    if arguments.reset {
        emulated::forget(&volume, &kept_beside(&pool))?;
        return Ok(ExitCode::SUCCESS);
    }
    let counters = emulated::open_or_kept(&volume, &kept_beside(&pool))?.ok_or_else(|| {
        Failure::Usage(format!(
            "{}: nothing was counted; run a program with `nacre run --wear --pool {0} -- PROGRAM`",
            pool.display()
        ))
    })?;
    let mut wear = counters
        .wear()
        .map_err(|errno| Failure::io(pool.display(), errno))?;
    if let Some(name) = &arguments.profile {
        wear.endurance = Profile::load(name)?.endurance.writes;
    }
    drop(volume);
    let places = arguments.hottest.map(|count| hottest(&pool, &wear, count));
    let places = places.transpose()?.unwrap_or_default();
    output::write(&show(&wear, &arguments.outputs, places)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page with heat maps of what a pool counts.
pub fn save_page(counters: &Emulation, path: &Path) -> Result<()> {
    let wear = counters.wear();
    let wear = wear.map_err(|errno| Failure::io(path.display(), errno))?;
    output::save(path, html(&wear, &report(&wear, None), None))
}

/// Writes the files that are wished; gives what is to be printed. The places that were written most
/// are in both.
pub fn show(wear: &Wear, outputs: &Outputs, hottest: Vec<HotPlace>) -> Result<Vec<u8>> {
    let save = |path: &Option<PathBuf>, bytes: &dyn Fn() -> Result<Vec<u8>>| match path {
        Some(path) => output::save(path, bytes()?),
        None => Ok(()),
    };
    let before = outputs.before.as_ref().map(|before| earlier(wear, before));
    let before = before.transpose()?;
    let report = Report {
        hottest,
        ..report(wear, before.as_ref())
    };
    let all = || cells(wear, None, part(wear, None));
    save(&outputs.csv, &|| Ok(csv(wear).into_bytes()))?;
    save(&outputs.svg, &|| {
        Ok(map(wear, "all kinds", None, None).into_bytes())
    })?;
    save(&outputs.png, &|| {
        heat_map_png(&all()).map_err(|error| Failure::Usage(format!("--png: {error}")))
    })?;
    save(&outputs.html, &|| {
        Ok(html(wear, &report, before.as_ref()).into_bytes())
    })?;
    let text = match outputs.json {
        true => output::json_text(&report)?,
        false => describe(&report),
    };
    Ok(text.into_bytes())
}

fn digits(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn spread(spread: Spread) -> SpreadReport {
    SpreadReport {
        granules_written: spread.granules,
        writes: spread.writes,
        most: spread.most,
        mean: digits(spread.mean),
        most_over_mean: digits(spread.most as f64 / spread.mean.max(1e-9)),
        gini: digits(spread.gini),
    }
}

/// What was counted by kind, and all of it.
fn counted(wear: &Wear) -> Vec<Counted> {
    let kinds = StoreKind::ALL.map(|kind| (NAMES[kind.index()], Some(kind)));
    let kinds = kinds.into_iter().chain([("all", None)]);
    let counted = |(name, kind)| Counted {
        kind: name,
        spread: spread(wear.spread(kind)),
    };
    kinds.map(counted).collect()
}

fn report(wear: &Wear, before: Option<&Wear>) -> Report {
    let totals = &wear.totals;
    let kinds = StoreKind::ALL.map(|kind| KindReport {
        kind: NAMES[kind.index()],
        stores: totals.stores[kind.index()],
        bytes: totals.bytes[kind.index()],
        line_bytes: totals.lines[kind.index()] * 64,
        spread: spread(wear.spread(Some(kind))),
    });
    let bytes: u64 = totals.bytes.iter().sum();
    let lines: u64 = totals.lines.iter().sum::<u64>() * 64;
    let cell_bytes = totals.cell_bytes;
    let over = |part: u64, whole: u64| digits(part as f64 / whole.max(1) as f64);
    Report {
        profile: wear.profile.clone(),
        granularity: wear.granularity,
        granules: wear.granules,
        seconds: digits(wear.seconds),
        amplification_software: over(bytes, totals.bytes[StoreKind::Data.index()]),
        amplification_lines: over(lines, bytes),
        amplification_device: over(cell_bytes, lines),
        ewr: digits(totals.ewr()),
        cell_bytes,
        reads: totals.reads,
        read_bytes: totals.read_bytes,
        lifetime_seconds: wear.lifetime(),
        all: spread(wear.spread(None)),
        kinds: kinds.into(),
        before: before.map(counted).unwrap_or_default(),
        hottest: Vec::new(),
    }
}

fn describe(report: &Report) -> String {
    let mut text = format!(
        "device     {}; counted by {} bytes, {:.1} s of use\n{:<10} {:>12} {:>10} {:>10} {:>9} {:>10} {:>9} {:>6}\n",
        report.profile,
        report.granularity,
        report.seconds,
        "kind",
        "stores",
        "bytes",
        "granules",
        "most",
        "mean",
        "most/mean",
        "gini"
    );
    for kind in &report.kinds {
        row(
            &mut text,
            kind.kind,
            &kind.stores.to_string(),
            &size::human(kind.bytes),
            &kind.spread,
        );
    }
    row(&mut text, "all", "", "", &report.all);
    let _ = writeln!(
        text,
        "write amplification: {} by logs and structures, {} by cache lines, {} by the device (EWR {}); {} to its cells",
        report.amplification_software,
        report.amplification_lines,
        report.amplification_device,
        report.ewr,
        size::human(report.cell_bytes)
    );
    let _ = writeln!(text, "lifetime   {}", lifetime(report.lifetime_seconds));
    if !report.before.is_empty() {
        text.push_str(&comparison(report));
    }
    if !report.hottest.is_empty() {
        text.push_str(&table(report.granularity, &report.hottest));
    }
    text
}

fn row(text: &mut String, name: &str, stores: &str, bytes: &str, spread: &SpreadReport) {
    let _ = writeln!(
        text,
        "{name:<10} {stores:>12} {bytes:>10} {:>10} {:>9} {:>10} {:>9} {:>6}",
        spread.granules_written, spread.most, spread.mean, spread.most_over_mean, spread.gini
    );
}

fn lifetime(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else {
        return "not limited by this device, or too little counted; choose a device with --profile"
            .to_owned();
    };
    let (value, unit) = match seconds {
        s if s >= 365.25 * 86_400.0 => (s / 365.25 / 86_400.0, "years"),
        s if s >= 86_400.0 => (s / 86_400.0, "days"),
        s if s >= 3600.0 => (s / 3600.0, "hours"),
        s if s >= 60.0 => (s / 60.0, "minutes"),
        s if s >= 1.0 => (s, "seconds"),
        _ => return "less than a second, at this pace".to_owned(),
    };
    format!("{value:.1} {unit}, until the granule that is written most wears out, at this pace")
}

fn csv(wear: &Wear) -> String {
    let mut text = format!(
        "# granularity {}\ngranule,data,metadata,log\n",
        wear.granularity
    );
    for granule in &wear.written {
        let [data, metadata, log] = granule.writes;
        let _ = writeln!(text, "{},{data},{metadata},{log}", granule.number);
    }
    text
}

fn title(wear: &Wear, what: &str) -> String {
    format!(
        "{what}: most writes of {} bytes in each square, by address",
        wear.granularity
    )
}

fn map(wear: &Wear, what: &str, kind: Option<StoreKind>, beside: Option<&Wear>) -> String {
    let part = part(wear, beside);
    heat_map(&HeatMap {
        title: &title(wear, what),
        cells: &cells(wear, kind, part),
        part: part * wear.granularity,
        end: wear.granules * wear.granularity,
        beside: &beside.map_or_else(Vec::new, |other| cells(other, kind, part)),
    })
}

/// Granules before the end of the last one that was written.
fn extent(wear: &Wear) -> u64 {
    let ends = wear
        .written
        .iter()
        .map(|granule| granule.number.saturating_add(1));
    ends.filter(|&end| end <= wear.granules).max().unwrap_or(0)
}

/// Granules of a cell of the heat map: as few as show all that was written, of both maps and of
/// every kind.
fn part(wear: &Wear, beside: Option<&Wear>) -> u64 {
    const MOST: u64 = 64 * COLUMNS as u64;
    let extent = extent(wear).max(beside.map_or(0, extent));
    extent.div_ceil(MOST).next_power_of_two()
}

/// The largest counts of parts of the pool of so many granules, as far as it was written.
fn cells(wear: &Wear, kind: Option<StoreKind>, part: u64) -> Vec<u64> {
    let mut cells = vec![0; extent(wear).div_ceil(part) as usize];
    for granule in &wear.written {
        let count = kind.map_or_else(
            || granule.total(),
            |kind| u64::from(granule.writes[kind.index()]),
        );
        if let Some(cell) = cells.get_mut((granule.number / part) as usize) {
            *cell = count.max(*cell);
        }
    }
    cells
}

/// Counts from the largest on: the first ones all, then ever fewer, as the axis shows them.
fn curve(wear: &Wear, name: &str, kind: Option<StoreKind>) -> Line {
    let count = |granule: &Granule| {
        kind.map_or_else(
            || granule.total(),
            |kind| u64::from(granule.writes[kind.index()]),
        )
    };
    let mut counts: Vec<u64> = wear
        .written
        .iter()
        .map(count)
        .filter(|&count| count > 0)
        .collect();
    counts.sort_unstable_by(|left, right| right.cmp(left));
    let next = |place: &usize| Some((place + 1).max(place + place / 50));
    let places = std::iter::successors(Some(1), next).take_while(|&place| place < counts.len());
    let places = places.chain([counts.len()].into_iter().filter(|&last| last > 0));
    let points = places.map(|place| (place as f64, counts[place - 1] as f64));
    Line::new(name, points.collect())
}

/// The wheel of the mouse with Ctrl zooms a picture around the pointer, without it the page scrolls
/// as ever. Dragging moves what is shown; a double click shows all of it again.
const ZOOM: &str = "<script>
for (const picture of document.querySelectorAll('svg')) {
  const view = picture.viewBox.baseVal, all = [view.x, view.y, view.width, view.height];
  const show = ([x, y, width, height]) => picture.setAttribute('viewBox', `${x} ${y} ${width} ${height}`);
  const at = event => new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
  picture.addEventListener('wheel', event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const here = at(event), by = Math.min(event.deltaY < 0 ? 0.8 : 1.25, all[2] / view.width);
    show([here.x - (here.x - view.x) * by, here.y - (here.y - view.y) * by, view.width * by, view.height * by]);
  });
  let from = null;
  picture.addEventListener('pointerdown', event => { if (view.width < all[2]) { from = at(event); event.preventDefault(); } });
  picture.addEventListener('pointermove', event => {
    if (!from) return;
    const here = at(event);
    show([view.x + from.x - here.x, view.y + from.y - here.y, view.width, view.height]);
  });
  for (const end of ['pointerup', 'pointerleave']) picture.addEventListener(end, () => from = null);
  picture.addEventListener('dblclick', () => show(all));
}
</script>
";

const HELP: &str = "<p>Squares and points tell their values under the mouse. Ctrl and the wheel \
    enlarge a picture, dragging moves it, and a double click shows all of it again.</p>\n";

/// A page with the report and pictures; side by side with what was counted before.
fn html(wear: &Wear, report: &Report, before: Option<&Wear>) -> String {
    let mut page = page::head(&format!("Wear on {}", wear.profile), "");
    let _ = writeln!(page, "<pre>{}</pre>", escape(&describe(report)));
    page += HELP;
    for kind in StoreKind::ALL {
        page += &maps(wear, kind, before);
    }
    page += "<h2>Writes of granules, sorted</h2>\n";
    page += &curves(wear, before);
    page + ZOOM
}

fn maps(wear: &Wear, kind: StoreKind, before: Option<&Wear>) -> String {
    let name = NAMES[kind.index()];
    let Some(old) = before else {
        return map(wear, name, Some(kind), None);
    };
    format!(
        "<div class=\"beside\">{}{}</div>",
        map(old, &format!("{name} before"), Some(kind), Some(wear)),
        map(wear, &format!("{name} after"), Some(kind), Some(old))
    )
}

fn curves(wear: &Wear, before: Option<&Wear>) -> String {
    let kinds = StoreKind::ALL.map(|kind| (NAMES[kind.index()], Some(kind)));
    let mut lines = Vec::new();
    for (name, kind) in kinds.into_iter().chain([("all", None)]) {
        lines.push(curve(wear, name, kind));
        lines.extend(before.map(|old| Line {
            dashed: true,
            ..curve(old, name, kind)
        }));
    }
    let labels = Labels {
        title: "",
        x: "granules, most written first",
        y: "writes",
        across: Scale::Tens,
        upwards: Scale::Tens,
        dashed: "before",
    };
    chart(&labels, &lines)
}

/// Counts that were written earlier.
fn earlier(wear: &Wear, before: &Path) -> Result<Wear> {
    let text =
        std::fs::read_to_string(before).map_err(|error| Failure::io(before.display(), error))?;
    let (granularity, written) = parse(&text).ok_or_else(|| {
        Failure::Usage(format!(
            "{}: no counts as `nacre wear --csv` writes them",
            before.display()
        ))
    })?;
    if granularity != wear.granularity {
        return Err(Failure::Usage(format!(
            "{}: granularity is {granularity}, that of the pool {}; count both alike with --wear={granularity}",
            before.display(),
            wear.granularity,
        )));
    }
    Ok(Wear {
        written,
        ..wear.clone()
    })
}

/// What changed since counts that were written earlier.
fn comparison(report: &Report) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>12} {:>9} {:>10} {:>9} {:>6}\n",
        "", "granules", "writes", "most", "mean", "most/mean", "gini"
    );
    let kinds = report.kinds.iter().map(|kind| &kind.spread);
    for (old, now) in report.before.iter().zip(kinds.chain([&report.all])) {
        for (when, of) in [("before", &old.spread), ("after", now)] {
            let _ = writeln!(
                text,
                "{:<9}{when:<7} {:>10} {:>12} {:>9} {:>10} {:>9} {:>6}",
                old.kind,
                of.granules_written,
                of.writes,
                of.most,
                of.mean,
                of.most_over_mean,
                of.gini
            );
        }
    }
    text
}

/// Granularity and granules.
fn parse(text: &str) -> Option<(u64, Vec<Granule>)> {
    let granularity = text
        .lines()
        .next()?
        .strip_prefix("# granularity ")?
        .trim()
        .parse()
        .ok()?;
    let granule = |line: &str| {
        let (number, counts) = line.split_once(',')?;
        let mut writes = [0; 3];
        let mut counts = counts.split(',');
        for place in &mut writes {
            *place = counts.next()?.trim().parse().ok()?;
        }
        Some(Granule {
            number: number.trim().parse().ok()?,
            writes,
        })
    };
    let granules = text.lines().skip(2).map(granule).collect::<Option<_>>()?;
    Some((granularity, granules))
}

#[cfg(test)]
mod tests {
    use super::{cells, comparison, csv, describe, earlier, html, lifetime, parse, part, report};
    use nacre_emulator::{Granule, Totals, Wear};

    fn wear() -> Wear {
        let granule = |number, writes| Granule { number, writes };
        Wear {
            profile: "pcm".into(),
            granularity: 256,
            granules: 20_000,
            written: vec![granule(0, [1, 2, 0]), granule(19_999, [0, 0, 9])],
            totals: Totals {
                stores: [1, 2, 9],
                bytes: [100, 16, 900],
                lines: [2, 2, 18],
                cell_bytes: 11 * 256,
                ..Totals::default()
            },
            seconds: 2.0,
            endurance: 1e8,
        }
    }

    #[test]
    fn reports_follow_from_the_counts() {
        let report = report(&wear(), None);
        assert_eq!((report.all.most, report.all.mean), (9, 6.0));
        assert_eq!(report.amplification_software, 10.16);
        assert_eq!(report.amplification_device, 2.0);
        assert_eq!(report.ewr, 0.5);
        assert!(describe(&report).contains("days"));
        assert!(lifetime(Some(7.0)).starts_with("7.0 seconds"));
        assert!(lifetime(Some(90.0)).starts_with("1.5 minutes"));
        assert!(lifetime(Some(0.01)).starts_with("less than a second"));
        assert!(lifetime(None).contains("--profile"));
    }

    #[test]
    fn counts_survive_the_way_through_a_file() {
        let (granularity, counts) = parse(&csv(&wear())).expect("counts");
        assert_eq!((granularity, counts), (256, wear().written));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), csv(&wear())).expect("written");
        let before = earlier(&wear(), file.path()).expect("counts");
        let table = comparison(&report(&wear(), Some(&before)));
        for kind in ["data", "metadata", "log", "all"] {
            assert_eq!(
                table.matches(kind).count(),
                2 + usize::from(kind == "data") * 2,
                "{table}"
            );
        }
        let other = Wear {
            granularity: 64,
            ..wear()
        };
        let refused = earlier(&other, file.path())
            .err()
            .map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("--wear=256")));
        assert!(parse("nonsense").is_none());
        assert!(parse("# granularity 64\nheader\n1,x").is_none());
    }

    #[test]
    fn heat_maps_are_bounded_and_show_the_most_written() {
        let of = |wear: &Wear| cells(wear, None, part(wear, None));
        let all = of(&wear());
        assert!(all.len() <= 8192);
        assert_eq!((all[0], all.last()), (3, Some(&9)));
        assert!(html(&wear(), &report(&wear(), None), None).contains("</svg>"));
        // What ends early is shown in more detail, and beside what ends late as coarsely as that.
        let mut early = wear();
        early.written[1].number = 4000;
        assert_eq!(of(&early).len(), 4001);
        assert_eq!(part(&early, Some(&wear())), part(&wear(), None));
        early.written.clear();
        assert!(of(&early).is_empty());
    }

    #[test]
    fn a_page_shows_before_and_after_side_by_side_in_the_same_colours() {
        let mut before = wear();
        before.written[1].writes = [0, 0, 4];
        let page = html(&wear(), &report(&wear(), Some(&before)), Some(&before));
        for title in ["data before", "data after", "log before", "log after"] {
            assert!(page.contains(&format!(">{title}: ")), "{title}");
        }
        assert_eq!(page.matches(">9</text>").count(), 2, "both scales end at 9");
        assert_eq!(page.matches(">before</text>").count(), 1, "dashed curves");
        for outside in ["http://", "src=", "url("] {
            assert!(
                !page.replace("http://www.w3.org", "").contains(outside),
                "{outside}"
            );
        }
    }
}
