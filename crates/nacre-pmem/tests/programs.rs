//! Programs that were written against Debian's libpmem, counted exactly.

use nacre_emulator::{Emulation, Profile, Settings, Wear};
use nacre_media::Owner;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Bytes that `persists.c` makes durable: 14 times 64, a page, and 64 of the other file.
const BYTES: u64 = 14 * 64 + 4096 + 64;

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let library = test.with_file_name("libnacre_pmem.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

fn compile(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name);
    let program = folder.join("program");
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .args([&program, &source])
        .args(options)
        .status();
    assert!(
        status.expect("gcc").success(),
        "{name}: see `make packages`"
    );
    program
}

fn counters(folder: &Path, granularity: u64) -> Emulation {
    let settings = Settings {
        profile: &Profile::plain(),
        delays: false,
        wear: Some(granularity),
    };
    let mine = folder.metadata().expect("the folder");
    let owner = Owner {
        uid: mine.uid(),
        gid: mine.gid(),
        mode: 0o600,
    };
    Emulation::create_for_files(&folder.join("counters"), &settings, owner).expect("counters")
}

fn run(program: &Path, words: &[&str], folder: &Path) -> Output {
    let output = Command::new(program)
        .args(words)
        .current_dir(folder)
        .env("LD_PRELOAD", library())
        .env("NACRE_EMULATION", folder.join("counters"))
        .env("PMEM_IS_PMEM_FORCE", "1")
        .output()
        .expect("started");
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn counted(options: &[&str]) -> Wear {
    let folder = tempfile::tempdir().expect("a folder");
    let counters = counters(folder.path(), 4096);
    let options: Vec<&str> = options.iter().copied().chain(["-lpmem"]).collect();
    let program = compile(folder.path(), "persists.c", &options);
    run(&program, &["a", "b"], folder.path());
    counters.wear().expect("readable")
}

#[test]
fn each_function_is_counted_once_where_it_wrote() {
    let wear = counted(&[]);
    assert_eq!(wear.totals.bytes, [BYTES, 0, 0]);
    let found: Vec<(u64, u64)> = wear.written.iter().map(|g| (g.number, g.total())).collect();
    let mut expected: Vec<(u64, u64)> = (0..14).map(|page| (page, 1)).collect();
    // The child's two pages, then the first page of the second file, which lies behind the first
    // one's 256.
    expected.extend([(15, 1), (16, 1), (256, 1)]);
    assert_eq!(found, expected);
    assert_eq!(wear.granules, 512);
}

#[test]
fn canary_one_persist_more_is_seen() {
    let wear = counted(&["-DCANARY"]);
    assert_eq!(wear.totals.bytes, [BYTES + 8, 0, 0]);
}

#[test]
fn transactions_of_libpmemobj_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "objects.c", &["-lpmemobj", "-lpmem"]);
    let counted = |times: &str| {
        let counters = counters(folder.path(), 256);
        let pool = format!("pool-{times}");
        let output = run(&program, &[&pool, times], folder.path());
        let times: u64 = times.parse().expect("a number");
        let sum = format!("{}\n", times * (times + 1) / 2);
        assert_eq!(String::from_utf8_lossy(&output.stdout), sum);
        counters.wear().expect("readable")
    };
    let (few, many) = (counted("10"), counted("1010"));
    let more = many.totals.stores[0] - few.totals.stores[0];
    assert!(
        (3000..100_000).contains(&more),
        "{more} stores by 1000 transactions"
    );
    // The root object is in each transaction.
    assert!(many.spread(None).most >= 1000);
}
