//! Programs under the shared object: small C programs that check one family of calls each, and
//! shell scripts.

mod plans;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nacre_store::{FormatOptions, WriteMode};
use nacre_testkit::pool::{PoolFiles, own_format};

/// The shared object of this build.
fn library() -> PathBuf {
    nacre_testkit::built::library("libnacre_preload.so")
}

/// A fresh pool in memory and a place for files of the host.
struct Stage {
    files: PoolFiles,
    mounts: String,
}

impl Stage {
    fn new() -> Self {
        Stage::of(128 << 20, WriteMode::Direct)
    }

    fn of(size: u64, mode: WriteMode) -> Self {
        let options = FormatOptions {
            mode,
            ..own_format()
        };
        let files = PoolFiles::with(&["pool"], size, &options);
        Stage {
            mounts: format!("/nacre={}", files.path().display()),
            files,
        }
    }

    fn host(&self) -> &Path {
        self.files.folder()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        under_library(program, arguments, &self.mounts)
            .current_dir(self.host())
            .output()
            .unwrap()
    }

    /// Runs a script in bash; its output, which must not hold complaints.
    fn script(&self, text: &str) -> String {
        let output = self.run("bash", &["-e", "-c", text]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        text
    }
}

fn under_library(program: &str, arguments: &[&str], mounts: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("NACRE_MOUNTS", mounts)
        // As `nacre run` says it.
        .env("NACRE_EMPTY_HANDED", std::process::id().to_string());
    command
}

/// Compiles tests/c/NAME.c and runs it in the pool, in a folder of its own.
fn check(name: &str) {
    check_on(&Stage::new(), name, "");
}

fn check_on(stage: &Stage, name: &str, arguments: &str) {
    succeeds(&compiled_and_run(stage, name, arguments));
}

fn succeeds(output: &Output) {
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{}\n{complaints}",
        output.status
    );
}

fn compiled_and_run(stage: &Stage, name: &str, arguments: &str) -> Output {
    let program = compiled(stage, name, name, &["-pthread"]);
    in_folder(stage, &program, arguments)
}

/// Compiles tests/c/SOURCE.c to a file of the host.
fn compiled(stage: &Stage, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{source}.c"));
    let program = stage.host().join(name);
    let compiled = Command::new("gcc")
        .args(["-O1", "-Wno-shift-overflow"])
        // As gcc from version 14 on has it.
        .args(["-Werror=implicit-function-declaration", "-o"])
        .arg(&program)
        .arg(source)
        .args(flags)
        .args(["-lrt"])
        .status()
        .expect("gcc is needed for this test");
    assert!(compiled.success());
    program
}

fn in_folder(stage: &Stage, program: &Path, arguments: &str) -> Output {
    let command = format!(
        "mkdir /nacre/d && cd /nacre/d && exec timeout 400 {} {arguments}",
        program.display()
    );
    stage.run("bash", &["-c", &command])
}

#[test]
fn calls_that_programs_and_libraries_make_themselves() {
    for kind in [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]] {
        let stage = Stage::new();
        let program = compiled(&stage, "raw", "raw", &kind);
        let library = |name, flag| {
            let flags = ["-DLIBRARY", "-shared", "-fPIC", flag];
            compiled(&stage, "raw", name, &flags)
        };
        let hosts = library("libhosts.so", "-DLARGE");
        let pools = library("libpools.so", "-Wl,--build-id=none");
        // The dynamic linker maps its table of functions after its code.
        let apart = "-Wl,--build-id=none,-z,max-page-size=0x200000,-s";
        let apart = library("libapart.so", apart).display().to_string();
        let cache = stage.host().join("cache").display().to_string();
        let (program, hosts, pools) = (program.display(), hosts.display(), pools.display());
        // The second time with the plans that were kept.
        let command = format!(
            "mkdir /nacre/d {cache}; cp {pools} /nacre/libpools.so; export XDG_CACHE_HOME={cache}; \
             for i in 1 2; do for library in {hosts} {apart}; do \
             timeout 400 {program} $library /nacre/libpools.so; done; done; ls {cache}/nacre/plans > /dev/null"
        );
        succeeds(&stage.run("bash", &["-ec", &command]));
    }
}

#[test]
fn calls_from_functions_that_keep_something_in_wide_registers() {
    let stage = Stage::new();
    let program = compiled(&stage, "raw", "wide", &["-DWIDE", "-O1"]);
    succeeds(&in_folder(&stage, &program, ""));
}

#[test]
fn addresses() {
    check("addresses");
}

#[test]
fn mapping() {
    check("mapping");
}

#[test]
fn fifos_and_sockets_are_for_those_whom_their_modes_let() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    check("nodes");
}

#[test]
fn a_hole_that_is_mapped_costs_nothing_until_it_is_written() {
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let stage = Stage::of(128 << 20, mode);
        let host = stage.host().join("host").display().to_string();
        check_on(&stage, "holes", &host);
    }
}

#[test]
fn a_private_mapping_shows_the_file_and_never_another_one() {
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let stage = Stage::of(96 << 20, mode);
        let flags = ["-DLIBRARY", "-shared", "-fPIC"];
        let library = compiled(&stage, "private", "libprivate.so", &flags);
        check_on(&stage, "private", &library.display().to_string());
    }
}

#[test]
fn calls_that_go_round_mappings_reach_nothing_else() {
    check("around");
}

#[test]
fn watches_are_told_what_those_of_tmpfs_are_told() {
    check("watches");
}

#[test]
fn symbols_of_the_c_library() {
    check("symbols");
}

#[test]
fn paths_of_the_host() {
    check("hosts");
}

#[test]
fn threads_that_are_cancelled_end_outside_of_nacre() {
    check("cancelled");
}

#[test]
fn nacre_calls_no_function_of_the_program() {
    let stage = Stage::new();
    let program = compiled(&stage, "own_names", "own_names", &["-rdynamic"]);
    succeeds(&in_folder(&stage, &program, ""));
}

#[test]
fn handlers_see_whether_a_call_goes_on() {
    check("interrupted");
}

#[test]
fn who_asks_about_free_numbers_does_not_disturb_who_opens_there() {
    check("numbers");
}

#[test]
fn signals() {
    check("signals");
}

#[test]
fn stacks() {
    check("stacks");
}

#[test]
fn a_call_that_takes_too_much_stack_is_noticed() {
    let output = compiled_and_run(&Stage::new(), "stacks", "canary");
    assert!(!output.status.success());
}

#[test]
fn of_two_signals_that_arrive_at_once_none_is_lost() {
    check_on(&Stage::new(), "signals", "pairs");
}

#[test]
fn canary_a_signal_that_is_lost_is_noticed() {
    let output = compiled_and_run(&Stage::new(), "signals", "canary");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("round 100: a signal was lost"), "{output:?}");
}

#[test]
fn processes() {
    check("processes");
}

/// Where an errno differs from tmpfs's: the end of the line on a pool, and why
/// (docs/semantics.md).
const OTHER_ERRNOS: [(&str, &str); 10] = [
    (
        "preadv2(f, NULL, 0, 0, 1 << 20): EOPNOTSUPP",
        "refused also where nothing is to be read",
    ),
    (
        "link(\"f\", \"/proc/x\"): EXDEV",
        "the kernel is not asked to make a name in /proc",
    ),
    (
        "fcntl(f, F_GET_SEALS): EINVAL",
        "as on ext4: only memory can be sealed",
    ),
    ("fcntl(f, F_ADD_SEALS, 1): EINVAL", "as on ext4"),
    (
        "fcntl(f, 1028): EINVAL",
        "F_CREATED_QUERY: as in kernels before 6.12",
    ),
    ("MAP_SYNC, f, 0): done", "as on a DAX file system"),
    (
        "madvise(m, PAGE, MADV_REMOVE): EOPNOTSUPP",
        "it would punch the pool itself",
    ),
    (
        "vmsplice(f, NULL, 0, 0): EBADF",
        "no pipe; the kernel looks at the segments first",
    ),
    (
        "\"f\"): EOPNOTSUPP",
        "fanotify_mark: no file of a pool can be watched",
    ),
    (
        "deep_by_library(): ENOENT",
        "where the path is too long for the kernel's call, the C library looks for each folder in \
         the one above, and a listing of / does not show the mount point",
    ),
];

/// The lines of tests/c/NAME.c, without Nacre in a folder of tmpfs, and in one of the pool.
fn without_and_with(name: &str) -> [Vec<String>; 2] {
    let stage = Stage::new();
    let program = compiled(&stage, name, name, &["-pthread"]);
    let in_memory = stage.host().join("without.d");
    fs::create_dir(&in_memory).unwrap();
    let plain = Command::new(&program)
        .current_dir(&in_memory)
        .output()
        .unwrap();
    [plain, in_folder(&stage, &program, "")].map(|output| {
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(str::to_owned).collect()
    })
}

#[test]
fn an_alternate_stack_that_cannot_be_written_changes_nothing() {
    let [plain, ours] = without_and_with("altstack");
    assert!(plain.len() == 96, "{plain:?}");
    assert_eq!(plain, ours);
}

#[test]
fn every_errno_of_the_manual_pages_is_that_of_tmpfs() {
    let [plain, ours] = without_and_with("errnos");
    assert!(
        plain.len() > 380 && plain.len() == ours.len(),
        "{}",
        plain.len()
    );
    let unknown = unknown_differences(&plain, &ours);
    assert!(unknown.is_empty(), "on tmpfs and on a pool: {unknown:#?}");
}

/// Pairs of lines that differ and stand in no table.
fn unknown_differences<'l>(plain: &'l [String], ours: &'l [String]) -> Vec<(&'l str, &'l str)> {
    let is_known = |line: &str| OTHER_ERRNOS.iter().any(|(known, _)| line.contains(known));
    let pairs = plain.iter().map(String::as_str);
    let pairs = pairs.zip(ours.iter().map(String::as_str));
    pairs
        .filter(|(plain, ours)| plain != ours && !is_known(ours))
        .collect()
}

#[test]
fn canary_an_errno_that_differs_is_noticed() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (plain, ours) = (lines("a: ENOENT\nb: done"), lines("a: ENOENT\nb: EPERM"));
    assert_eq!(
        unknown_differences(&plain, &ours),
        [("b: done", "b: EPERM")]
    );
}

#[test]
fn a_pool_is_attached_when_it_is_first_used() {
    let stage = Stage::new();
    stage.script("printf text > /nacre/f; chmod 755 /nacre");
    let program = compiled(&stage, "late", "late", &["-pthread"]);
    succeeds(&stage.run(program.to_str().unwrap(), &[]));
}

#[test]
fn programs_that_execute_others_while_their_threads_work() {
    check_on(&Stage::new(), "execs", "40");
}

/// A program in a new pid namespace; `None` where the system gives no such.
fn in_namespace(stage: &Stage, more: &str, script: &str) -> Option<Output> {
    let unshare = format!("unshare --user --map-root-user --pid --fork {more}");
    let mut trial = Command::new("sh");
    let trial = trial.args(["-c", &format!("{unshare} true")]);
    if !trial.output().unwrap().status.success() {
        eprintln!("skipped: no new pid namespaces here");
        return None;
    }
    Some(stage.run("sh", &["-c", &format!("{unshare} {script}")]))
}

#[test]
fn a_program_whose_addresses_are_limited_is_told_how_many_a_pool_takes() {
    let stage = Stage::new();
    let within = |mib: u64| {
        let script = format!(
            "ulimit -v {}; exec env LD_PRELOAD={} NACRE_MOUNTS={} sh -c 'echo > /nacre/f'",
            mib << 10,
            library().display(),
            stage.mounts
        );
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let mut told = Vec::new();
    // The one has no room for the pool, the other none for its session.
    for mib in [100, 150] {
        let output = within(mib);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(126), "{output:?}");
        assert!(
            text.contains(&format!("it may use {mib} MiB in all")),
            "{text}"
        );
        assert!(text.contains("ulimit -v unlimited"), "{text}");
        let number = text
            .split("takes ")
            .nth(1)
            .and_then(|text| text.split(' ').next());
        told.push(number.unwrap().parse::<u64>().unwrap());
    }
    assert_eq!(told[0], told[1]);
    succeeds(&within(told[0] + 64));
}

#[test]
fn a_program_that_may_open_few_files_is_told_the_limit() {
    let stage = Stage::new();
    for limit in [4, 5, 6] {
        let script = format!(
            "ulimit -n {limit}; exec env LD_PRELOAD={} NACRE_MOUNTS={} sh -c 'echo > /nacre/f'",
            library().display(),
            stage.mounts
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let told = format!("at most {limit} files may be open here (`ulimit -n`)");
        assert!(
            !output.status.success() && text.contains(&told),
            "{output:?}"
        );
    }
}

/// A limit that a program sets counts what it maps itself, for its children, too.
#[test]
fn a_limit_of_addresses_leaves_room_for_the_pool() {
    let stage = Stage::new();
    let map = |mib: u32| format!("python3 -c 'import mmap; mmap.mmap(-1, {mib} << 20)'");
    let script = format!(
        "ulimit -v 204800 && echo one >/nacre/f && cat /nacre/f && (sh -c 'cat /nacre/f') && {} && \
         ulimit -v 153600 && {} && cat /nacre/f && {}",
        map(100),
        map(50),
        map(1024)
    );
    let output = stage.run("bash", &["-c", &script]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\none\none\n");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Cannot allocate memory"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn children_in_a_new_pid_namespace_are_served() {
    let stage = Stage::new();
    let script = "sh -c 'echo one > /nacre/f; (echo two >> /nacre/f); cat /nacre/f /proc/self/stat | head -2'; cat /nacre/f";
    let Some(output) = in_namespace(&stage, "", script) else {
        return;
    };
    succeeds(&output);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "one\ntwo\none\ntwo\n"
    );
    for name in ["processes", "execs", "spawns"] {
        let program = compiled(&stage, name, name, &["-pthread"]);
        let place = format!("mkdir -p /nacre/{name} && cd /nacre/{name} &&");
        let script = format!("sh -c '{place} exec timeout 100 {} 20'", program.display());
        succeeds(&in_namespace(&stage, "", &script).unwrap());
    }
}

#[test]
fn a_program_that_cannot_see_the_others_runs_without_the_pool_or_not_at_all() {
    let stage = Stage::new();
    let mounted = |script: &str| in_namespace(&stage, "--mount-proc", script);
    let Some(output) = mounted("sh -c 'true; echo goes on'") else {
        return;
    };
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "goes on\n",
        "{output:?}"
    );
    assert!(
        told(&output).contains("goes on without the pool") && told(&output).lines().count() == 2
    );
    let output = mounted("sh -c 'echo x > /nacre/f'").unwrap();
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(told(&output).contains("names /nacre") && told(&output).contains("NACRE_UNSERVED"));
}

#[test]
fn of_several_copies_of_the_library_the_first_serves() {
    let stage = Stage::new();
    let copies = ["libnacre_preload.so", "renamed.so"].map(|name| {
        let copy = stage.host().join(name);
        fs::copy(library(), &copy).unwrap();
        copy.display().to_string()
    });
    let (own, copies) = (library().display().to_string(), copies.join(":"));
    let python = "import os; open('p', 'w').write('python'); os.system('cat p; ls; wc -c <b')";
    for (folder, preload) in [
        ("a", format!("{own}:{copies}")),
        ("b", format!("{copies}:{own}")),
    ] {
        let script = format!(
            "mkdir /nacre/{folder}; cd /nacre/{folder}; echo bash >b; cat b; python3 -c \"{python}\""
        );
        let output = under_library("bash", &["-c", &script], &stage.mounts)
            .env("LD_PRELOAD", preload)
            .output()
            .unwrap();
        succeeds(&output);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "bash\npythonb\np\n5\n"
        );
    }
    assert_eq!(stage.script("ls /nacre"), "a\nb\n");
}

#[test]
fn a_user_without_rights_to_the_pool_is_told_so() {
    let stage = Stage::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Where that user finds it, wherever the library was built.
    let library_of_user = stage.files.file("libnacre_preload.so");
    fs::copy(library(), &library_of_user).unwrap();
    fs::set_permissions(stage.host(), fs::Permissions::from_mode(0o711)).unwrap();
    let as_user = |command: &str| {
        let script = format!(
            "export LD_PRELOAD={}; setpriv --reuid 65534 --regid 65534 --clear-groups {command}",
            library_of_user.display()
        );
        stage.run("sh", &["-c", &script])
    };
    succeeds(&as_user("true"));
    let output = as_user("cat /nacre/f");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("user 65534 has no rights") && told.contains("chmod"),
        "{told}"
    );
    // Standard error is of no use to it, but it has a terminal.
    let output = as_user("true 2>/nacre/err");
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let on_terminal = format!(
        "export LD_PRELOAD={}; exec script -qec 'setpriv --reuid 65534 --regid 65534 --clear-groups \
         true 2>/nacre/err' /dev/null",
        library_of_user.display()
    );
    let output = stage.run("sh", &["-c", &on_terminal]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("user 65534 has no rights"), "{output:?}");
}

#[test]
fn a_child_in_its_parents_memory_that_executes_nothing_leaves_it_as_it_was() {
    check("failed_execs");
}

#[test]
fn programs_are_spawned_while_threads_open_and_close() {
    check_on(&Stage::new(), "spawns", "150");
}

#[test]
fn what_is_forked_while_threads_open_and_close_has_no_number_left_over() {
    check_on(&Stage::new(), "forks", "60");
}

#[test]
fn children_in_the_memory_of_their_parent_are_served_as_themselves() {
    check("sharing");
}

#[test]
fn descriptors() {
    check("descriptors");
}

#[test]
fn what_is_forked_below_another_root_has_the_pool() {
    check("other_root");
}

#[test]
fn what_is_forked_where_nothing_is_found_runs_without_the_pool() {
    check("nowhere");
}

#[test]
fn requests_in_a_context_of_linux_aio() {
    check("aio");
}

#[test]
fn requests_in_rings_of_io_uring() {
    let stage = Stage::new();
    let program = compiled(&stage, "uring", "uring", &["-pthread", "-luring"]);
    succeeds(&in_folder(&stage, &program, ""));
}

#[test]
fn a_full_pool_refuses_whole_operations() {
    check_on(&Stage::of(32 << 20, WriteMode::Direct), "full", "");
}

#[test]
fn a_full_pool_refuses_whole_operations_in_atomic_mode() {
    check_on(&Stage::of(32 << 20, WriteMode::Atomic), "full", "");
}

#[test]
fn canary_an_operation_that_is_refused_when_half_is_done_is_noticed() {
    let output = compiled_and_run(&Stage::of(32 << 20, WriteMode::Direct), "full", "canary");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a name has come"), "{output:?}");
}

#[test]
fn a_process_with_too_many_descriptors_gets_emfile() {
    check_on(&Stage::new(), "limits", "descriptors");
}

#[test]
fn every_number_below_the_limit_of_descriptors_is_the_programs() {
    let stage = Stage::new();
    let program = compiled(&stage, "limits", "limits", &["-pthread"]);
    let script = format!(
        "mkdir /nacre/d && cd /nacre/d && ulimit -Sn 1024 && exec {} numbers",
        program.display()
    );
    succeeds(&stage.run("bash", &["-c", &script]));
}

#[test]
fn programs_that_forbid_themselves_what_they_do_not_need_use_their_pool() {
    check("confined");
}

#[test]
fn files_are_opened_by_their_handles() {
    check("handles");
}

#[test]
fn attributes_leases_and_roots_are_refused_or_told_as_they_are() {
    check("attributes");
}

#[test]
fn who_locks_all_memory_does_not_lock_the_pool() {
    check_on(&Stage::new(), "limits", "memory");
}

#[test]
fn a_full_table_of_descriptions_gives_enfile_and_forgets_the_dead() {
    check_on(&Stage::new(), "limits", "descriptions");
}

#[test]
fn a_full_table_of_locks_gives_enolck() {
    check_on(&Stage::new(), "limits", "locks");
}

#[test]
fn a_failing_device_gives_eio_and_kills_nobody() {
    let stage = Stage::of(48 << 20, WriteMode::Direct);
    let pool = stage.host().join("pool");
    check_on(&stage, "limits", &format!("device {}", pool.display()));
}

#[test]
fn a_clock_that_goes_backwards_harms_nothing() {
    check_on(&Stage::new(), "limits", "clock");
}

#[test]
fn every_served_call_of_libc_is_patched() {
    let output = under_library("true", &[], "")
        .env("NACRE_DEBUG", "1")
        .output()
        .unwrap();
    let report = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        report.matches("calls patched").count(),
        2,
        "libc and the dynamic linker: {report}"
    );
    let left: Vec<&str> = report
        .lines()
        .filter(|line| line.contains("not patched"))
        .collect();
    assert!(
        left.iter().all(|line| line.contains("call -1 ")),
        "{left:?}"
    );
    assert!(
        left.len() <= 2,
        "only the return from signal handlers: {left:?}"
    );
}

#[test]
fn without_mounts_programs_do_what_they_did() {
    let script = "for i in 1 2 3; do echo $i; done | sort -r | head -1; (exit 3) || echo $?; \
                  x=$(date -d @0 -u +%Y); echo $x; sleep 0.05 & wait; perl -e 'print 7*6, qq(\\n)'";
    let output = under_library("bash", &["-c", script], "").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n3\n1970\n42\n");
    assert!(output.stderr.is_empty());
}

#[test]
fn a_pool_that_cannot_be_attached_stops_the_program() {
    let mut command = under_library("echo", &["silent"], "/nacre=/nonexistent/pool");
    let output = command.env_remove("NACRE_EMPTY_HANDED").output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(output.stdout.is_empty());
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("/nonexistent/pool"), "{complaint}");
}

#[test]
fn shells_redirect_into_the_pool() {
    let stage = Stage::new();
    let text = stage.script(
        "cd /nacre; echo one > f; echo two >> f; cat < f; seq 1000 | tee n | tail -1; wc -l < n; \
         exec 5<>rw; echo abc >&5; exec 5>&-; cat rw; cat <<< here; pwd; /bin/pwd; cd ..; pwd",
    );
    assert_eq!(text, "one\ntwo\n1000\n1000\nabc\nhere\n/nacre\n/nacre\n/\n");
}

#[test]
fn programs_and_scripts_of_the_pool_are_executed() {
    let stage = Stage::new();
    let text = stage.script(
        "cd /nacre; cp /bin/bash shell; cp /usr/bin/readlink .; \
         printf '#!/nacre/shell -e\\necho script $0 $1\\n' > s1; chmod +x s1; ./s1 a; \
         printf '#!/nacre/s1\\n' > s2; chmod +x s2; ./s2; \
         ./readlink /proc/self/exe; ./shell -c 'echo $(cat /proc/self/comm)'; \
         env -i ./shell -c 'cat /nacre/s1 | wc -l'; PATH=/nacre:$PATH s1 b; \
         chmod -x s1; ./s1 2>/dev/null || echo $?; ./missing 2>/dev/null || echo $?",
    );
    let expected = "script ./s1 a\nscript /nacre/s1 ./s2\n/nacre/readlink\ncat\n2\n\
                    script /nacre/s1 b\n126\n127\n";
    assert_eq!(text, expected);
}

#[test]
fn scripts_and_links_of_the_host_lead_into_the_pool() {
    let stage = Stage::new();
    let text = stage.script(
        "cp /bin/bash /nacre/shell; printf '#!/nacre/shell\\necho host script\\n' > s; chmod +x s; ./s; \
         ln -s /nacre/shell link; ./link -c 'echo by link'; echo data > /nacre/f; ln -s /nacre/f l; cat l; \
         printf '#!/bin/sh\necho $0\n' > /nacre/s; chmod +x /nacre/s; ln -s /nacre/s ls; ./ls",
    );
    assert_eq!(text, "host script\nby link\ndata\n./ls\n");
}

#[test]
fn libraries_of_the_pool_are_found_at_start() {
    let stage = Stage::new();
    let text = stage.script(
        "mkdir -p /nacre/d/lib; cd /nacre/d; \
         echo 'int low(void){return 40;}' > low.c; echo 'int low(void); int high(void){return low()+2;}' > high.c; \
         echo 'int high(void); int system(const char *); int main(void){ \
               return high() + !system(\"ls -l /proc/self/fd | grep -q memfd:lib\");}' > main.c; \
         gcc -shared -fPIC -o lib/liblow.so low.c; \
         gcc -shared -fPIC -o lib/libhigh.so high.c -Llib -llow -Wl,-rpath,'$ORIGIN'; \
         gcc -o by-path main.c lib/libhigh.so lib/liblow.so; ./by-path || echo $?; \
         gcc -o by-origin main.c -Llib -lhigh -llow -Wl,-rpath,'$ORIGIN/lib'; ./by-origin || echo $?; \
         gcc -o by-variable main.c -Llib -lhigh -llow; ./by-variable 2>/dev/null || echo $?; \
         LD_LIBRARY_PATH=/nacre/d/lib ./by-variable || echo $?; \
         LD_LIBRARY_PATH=/nacre/d/lib sh -c 'echo $LD_LIBRARY_PATH; ./by-variable || echo $?; env | grep -c NACRE_L' || true; \
         ls /dev/shm | grep -c nacre-libraries || true",
    );
    assert_eq!(text, "42\n42\n127\n42\n/nacre/d/lib\n42\n0\n0\n");
}

#[test]
fn libraries_of_the_pool_are_preloaded() {
    let stage = Stage::new();
    let text = stage.script(
        "mkdir /nacre/d; cd /nacre/d; \
         echo 'int base(void){return 1;}' > base.c; gcc -shared -fPIC -o libbase.so base.c; \
         echo 'int base(void); long write(int, const void *, unsigned long); __attribute__((constructor)) \
               static void hello(void){ if (base()) write(1, \"hello\\n\", 6); }' > hello.c; \
         gcc -shared -fPIC -o hello.so hello.c -L. -lbase -Wl,-rpath,'$ORIGIN'; \
         LD_PRELOAD=./hello.so /bin/true; \
         LD_PRELOAD=/nacre/d/hello.so sh -c '/bin/true; /bin/true'; \
         LD_LIBRARY_PATH=. LD_PRELOAD=\"$LD_PRELOAD hello.so\" /bin/true; \
         cp /bin/true of-pool; LD_PRELOAD=./hello.so ./of-pool; \
         LD_PRELOAD=./hello.so printenv LD_PRELOAD | sed 's,.*:,,'; \
         LD_PRELOAD=./hello.so env | grep -c NACRE_L || true; \
         LD_PRELOAD=./missing.so /bin/true 2>&1 | grep -o missing.so; \
         ls /dev/shm | grep -c nacre-libraries || true",
    );
    let hello = "hello\n";
    let expected = [
        hello.repeat(1 + 3 + 1 + 1),
        format!("{hello}./hello.so\n0\nmissing.so\n0\n"),
    ];
    assert_eq!(text, expected.concat());
}

#[test]
fn the_log_shows_calls() {
    let stage = Stage::new();
    let log = stage.host().join("log");
    let setting = format!("NACRE_LOG={}", log.display());
    stage.run("env", &[&setting, "bash", "-c", "echo logged > /nacre/f"]);
    let text = fs::read_to_string(log).unwrap();
    assert!(
        text.lines()
            .any(|line| line.ends_with(r#"] openat(AT_FDCWD, "/nacre/f", 0x241, 0666) = 3"#)),
        "{text}"
    );
    assert!(
        text.lines()
            .any(|line| line.contains("] write(1") && line.ends_with("= 7")),
        "{text}"
    );
}

#[test]
fn what_was_written_is_there_after_a_kill() {
    let stage = Stage::new();
    stage.run(
        "bash",
        &["-c", "echo kept > /nacre/f; mkdir /nacre/d; kill -9 $$"],
    );
    assert_eq!(stage.script("cat /nacre/f; ls /nacre"), "kept\nd\nf\n");
}
