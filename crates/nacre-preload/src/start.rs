//! Start-up: runs before every other constructor, patches libc and attaches the pools.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_emulator::{Emulation, EmulationError, path_beside};
use nacre_fs::Fs;
use nacre_session::Session;
use nacre_store::{AttachOptions, SessionChoice, Store};
use nacre_vfs::{MountSpec, Vfs};
use nacre_volume::{Access, Observer, Volume};

use crate::environment::Environment;
use crate::host::{Host, Pool};
use crate::mounts::{self, Mount};
use crate::tls::Inside;
use crate::{descriptors, exec, kernel, libraries, log, patching, process, signals, symbols};

/// Status of a program that could not be started with its mounts.
pub const CANNOT_START: i32 = 126;

/// The dynamic linker calls this first of all (`-z initfirst`), with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = start;

extern "C" fn start(_: c_int, _: *const *const c_char, environment: *mut *mut c_char) {
    let result = std::panic::catch_unwind(|| {
        let _inside = Inside::enter();
        // SAFETY: the dynamic linker passes the environment, and no other code runs yet.
        let environment = unsafe { Environment::start(environment) };
        environment
            .setting("NACRE_MOUNTS")
            .map_or(Ok(()), |mounts| begin(mounts, environment))
    });
    match result {
        Ok(Ok(())) => {}
        Ok(Err(message)) => give_up(&message),
        Err(_) => give_up("internal error at start (please report it)"),
    }
}

/// A program must not run without its mounts and write into the folder below.
fn give_up(message: &str) -> ! {
    kernel::write_all(2, format!("nacre: {message}\n").as_bytes());
    kernel::exit(CANNOT_START)
}

fn begin(mounts: &[u8], environment: &'static Environment) -> Result<(), String> {
    if let Some(target) = environment.setting("NACRE_LOG") {
        log::start(target);
    }
    #[cfg(feature = "kill-steps")]
    crate::steps::start(environment);
    if let Some(path) = &environment.executable {
        named_after(path);
        exec::executes(path.clone());
    }
    if let Some(folder) = &environment.libraries {
        libraries::remove(folder);
    }
    if let Some(folder) = environment.setting("NACRE_SESSION_DIR") {
        Session::use_folder(PathBuf::from(OsStr::from_bytes(folder)));
    }
    nacre_session::report_stalls(|pid| log::warn(&nacre_session::stall_text(pid)));
    let mounts = mounts::parse(mounts)?;
    let chunks = environment.setting("NACRE_MAP_CHUNKS").is_some();
    let before = descriptors::open();
    let (specs, pools) = attach_all(&mounts, chunks)?;
    let host = Arc::new(Host { pools });
    let vfs = Vfs::start(specs, host).map_err(|error| format!("cannot start: {error}"))?;
    vfs.after_exec(&before)
        .map_err(|error| format!("cannot take over open files: {error}"))?;
    let internal = descriptors::open()
        .into_iter()
        .filter(|fd| !before.contains(fd));
    internal.for_each(descriptors::keep_internal);
    signals::start();
    let vfs = process::start(vfs);
    patching::patch_all(environment)?;
    symbols::start(vfs);
    Ok(())
}

fn attach_all(mounts: &[Mount], chunks: bool) -> Result<(Vec<MountSpec>, Vec<Pool>), String> {
    let (mut specs, mut pools) = (Vec::new(), Vec::new());
    for mount in mounts {
        let shown = mount.pool.display();
        let (fs, pool) = attach(mount, chunks).map_err(|error| {
            format!(
                "cannot attach the pool {shown}: {error}\n       `nacre check {shown}` says more"
            )
        })?;
        specs.push(MountSpec {
            prefix: mount.prefix.clone(),
            fs,
            read_only: mount.read_only,
        });
        pools.push(pool);
    }
    Ok((specs, pools))
}

fn attach(mount: &Mount, chunks: bool) -> Result<(Fs, Pool), Box<dyn std::error::Error>> {
    let access = if mount.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let volume = Volume::open(&mount.pool, access)?;
    emulate(&volume)?;
    let options = AttachOptions {
        session: SessionChoice::Shared,
        mode: mount.mode,
        granularity: mount.granularity,
        resume: true,
        parallel: false,
    };
    let store = Store::attach(volume, &options)?;
    #[cfg(feature = "kill-steps")]
    crate::steps::watch(&store);
    let session = store.session();
    let path = session.path().ok_or("the pool has no session file")?;
    let pool = Pool::new(path.as_os_str().as_bytes())
        .map_err(|error| format!("no folder beside {}: errno {}", path.display(), error.0))?;
    let mode = store.mode();
    let mut fs = Fs::with_mode(store, mode);
    if chunks {
        fs.map_chunks_only();
    }
    Ok((fs, pool))
}

/// Makes the volume's stores known to the pool's emulation, if it is on.
fn emulate(volume: &Volume) -> Result<(), EmulationError> {
    let path = path_beside(&Session::path_for(volume.uuid()));
    if let Some(emulation) = Emulation::join(&path, volume.uuid())? {
        let observer: Arc<dyn Observer> = Arc::new(emulation);
        volume.set_observer(&observer);
    }
    Ok(())
}

/// The thread's name is that of the program, not of the memory that it was copied to.
fn named_after(path: &[u8]) {
    let mut name = [0u8; 16];
    let file = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let len = file.len().min(name.len() - 1);
    name[..len].copy_from_slice(&file[..len]);
    kernel::call(
        libc::SYS_prctl,
        &[libc::PR_SET_NAME as usize, name.as_ptr() as usize],
    );
}
