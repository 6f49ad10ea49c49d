//! The settings of this process, as they came in its environment.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::kernel;

/// What is kept of the environment.
#[derive(Debug, Default)]
pub struct Environment {
    /// All `NACRE_...=value` texts, to be given to every new program.
    pub settings: Vec<Vec<u8>>,
    /// Path of this library.
    pub library: Vec<u8>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<Vec<u8>>,
    /// Path of the pool's program that was executed to get here.
    pub executable: Option<Vec<u8>>,
    /// Folder with the libraries that this program was started with.
    pub libraries: Option<Vec<u8>>,
    /// Whether the dynamic linker saw another `LD_PRELOAD` than the program is to see.
    other_preloads: bool,
    /// Whether Valgrind runs the program.
    pub in_valgrind: bool,
    /// How many of the sizes of a terminal are told, as gdb tells them to the program.
    sizes: u32,
    /// The process that says that nothing of a pool was open when this program was executed.
    empty_handed: Option<i32>,
}

/// The path by which the dynamic linker has loaded this library, whatever its file is called.
fn loaded_as() -> &'static [u8] {
    let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let address = loaded_as as *const c_void;
    // SAFETY: `found` has room for what is filled in; the name belongs to the library, which stays.
    unsafe {
        let known = libc::dladdr(address, found.as_mut_ptr()) != 0;
        let name = found.assume_init().dli_fname;
        match known && !name.is_null() {
            true => CStr::from_ptr(name).to_bytes(),
            false => &[],
        }
    }
}

static KEPT: OnceLock<Environment> = OnceLock::new();

/// Whether paths start elsewhere than at the start of the program.
static ROOT_CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether paths start in a folder of a pool, which the kernel shows.
static ROOT_IN_A_POOL: AtomicBool = AtomicBool::new(false);

/// Whether the root that was there is gone: a sandbox's has its place.
static ROOT_EXCHANGED: AtomicBool = AtomicBool::new(false);

/// Another root has the place of the one that was there (`pivot_root`).
pub fn root_exchanged() {
    ROOT_EXCHANGED.store(true, Ordering::Relaxed);
}

/// Whether it has.
pub fn is_root_exchanged() -> bool {
    ROOT_EXCHANGED.load(Ordering::Relaxed)
}

/// Paths start elsewhere from now on.
pub fn root_changed(in_a_pool: bool) {
    ROOT_CHANGED.store(true, Ordering::Relaxed);
    ROOT_IN_A_POOL.store(in_a_pool, Ordering::Relaxed);
}

/// Whether programs that are executed find nothing but what a pool holds.
pub fn root_is_in_a_pool() -> bool {
    ROOT_IN_A_POOL.load(Ordering::Relaxed)
}

/// The settings of this process.
pub fn get() -> &'static Environment {
    KEPT.get_or_init(Environment::default)
}

/// Passes the path of the executed program of a pool.
pub const EXECUTABLE: &[u8] = b"NACRE_EXECUTABLE=";
/// Passes the folder with copies of libraries of pools.
pub const LIBRARIES: &[u8] = b"NACRE_LIBRARIES=";

/// Passes what the program is to see of `LD_PRELOAD`, if the dynamic linker sees something else.
pub const PRELOADS: &[u8] = b"NACRE_LD_PRELOAD=";

/// Passes the number of the process that executes a program with nothing of a pool open; as
/// `nacre run`, of its parent.
pub const EMPTY_HANDED: &[u8] = b"NACRE_EMPTY_HANDED=";

/// Whether an entry is only for us: no program sees it.
pub fn is_internal(text: &[u8]) -> bool {
    let internal = [EXECUTABLE, LIBRARIES, PRELOADS, EMPTY_HANDED];
    internal.iter().any(|name| text.starts_with(name))
}

/// Gives the C library its environment before it takes it itself. Calls of ours may go through
/// another preloaded library, which looks there once and for all (fakeroot).
///
/// # Safety
/// As [`Environment::start`]; no other code runs meanwhile.
unsafe fn lend(entries: *mut *mut c_char) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if environ.is_null() {
            environ = entries;
        }
    }
}

impl Environment {
    /// Reads the environment at `entries`, and removes what is only for us.
    ///
    /// # Safety
    /// `entries` is a NULL-terminated array of writable strings that nobody else uses meanwhile.
    pub unsafe fn start(entries: *mut *mut c_char) -> &'static Environment {
        let mut found = Environment::default();
        // SAFETY: the array ends at NULL, its entries are strings.
        unsafe {
            let mut from = entries;
            while !from.read().is_null() {
                found.take(CStr::from_ptr(from.read()).to_bytes());
                from = from.add(1);
            }
        }
        let (mut from, mut to) = (entries, entries);
        // SAFETY: `to` never passes `from`, which ends at NULL.
        unsafe {
            while !from.read().is_null() {
                if let Some(shown) = found.shown(from.read()) {
                    to.write(shown);
                    to = to.add(1);
                }
                from = from.add(1);
            }
            to.write(core::ptr::null_mut());
        }
        // SAFETY: no other code runs yet.
        unsafe { lend(entries) };
        KEPT.get_or_init(|| found)
    }

    /// What the program sees of an entry; None if nothing.
    ///
    /// # Safety
    /// `entry` is a writable string.
    unsafe fn shown(&self, entry: *mut c_char) -> Option<*mut c_char> {
        const NAME: &[u8] = b"LD_LIBRARY_PATH=";
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if text.starts_with(PRELOADS) {
            // SAFETY: within the string.
            return Some(unsafe { entry.add(b"NACRE_".len()) });
        }
        let is_for_linker = self.other_preloads && text.starts_with(b"LD_PRELOAD=");
        if is_for_linker || is_internal(text) {
            return None;
        }
        let (Some(folder), Some(path)) = (&self.libraries, text.strip_prefix(NAME)) else {
            return Some(entry);
        };
        let Some(rest) = path.strip_prefix(folder.as_slice()) else {
            return Some(entry);
        };
        rest.starts_with(b":").then(|| {
            // SAFETY: the folder and the colon lie in the string, with the name before them.
            unsafe {
                let start = entry.add(folder.len() + 1);
                start.cast::<u8>().copy_from(NAME.as_ptr(), NAME.len());
                start
            }
        })
    }

    /// Keeps what is of interest.
    pub(crate) fn take(&mut self, text: &[u8]) {
        if let Some(path) = text.strip_prefix(EXECUTABLE) {
            self.executable = Some(path.to_vec());
        } else if let Some(folder) = text.strip_prefix(LIBRARIES) {
            self.libraries = Some(folder.to_vec());
        } else if text.starts_with(PRELOADS) {
            self.other_preloads = true;
        } else if let Some(number) = text.strip_prefix(EMPTY_HANDED) {
            let number = core::str::from_utf8(number).ok();
            self.empty_handed = number.and_then(|number| number.parse().ok());
        } else if let Some(list) = text.strip_prefix(b"LD_PRELOAD=") {
            let loaded = loaded_as();
            let ours = |one: &&[u8]| *one == loaded;
            let mut all = list.split(|&b| b == b':' || b == b' ');
            self.library = all.find(ours).unwrap_or_default().to_vec();
            let tool = b"/vgpreload_";
            self.in_valgrind = list.windows(tool.len()).any(|part| part == tool);
        } else if let Some(home) = text.strip_prefix(b"XDG_CACHE_HOME=") {
            self.cache_home = home.starts_with(b"/").then(|| home.to_vec());
        } else if text.starts_with(b"LINES=") || text.starts_with(b"COLUMNS=") {
            self.sizes += 1;
        } else if text.starts_with(b"NACRE_") {
            self.settings.push(text.to_vec());
        }
    }

    /// Whether a debugger may have put breakpoints into the text of libraries already.
    pub fn may_be_debugged(&self) -> bool {
        self.sizes > 1
    }

    /// Whether nothing of a pool can be open in this process. What is said of another process does
    /// not count: programs that are not served hand the environment on.
    pub fn starts_with_nothing(&self) -> bool {
        let said_of = |number| number == kernel::getpid() || number == kernel::getppid();
        self.empty_handed.is_some_and(said_of)
    }

    /// Value of the setting `name`.
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        self.settings
            .iter()
            .find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// The list of libraries to preload into a program for which `list` was meant. This one is in
    /// it, unless it is out of reach since [`root_changed`].
    pub fn preloads(&self, list: &[u8]) -> Vec<u8> {
        if !self.is_within_reach() {
            return self.others(list);
        }
        match list {
            list if self.is_in(list) => list.to_vec(),
            b"" => self.library.clone(),
            list => [&self.library, b":".as_slice(), list].concat(),
        }
    }

    /// A list of libraries to preload without this one.
    pub fn others(&self, list: &[u8]) -> Vec<u8> {
        let others = libraries(list).filter(|one| !self.is(one));
        others.collect::<Vec<&[u8]>>().join(&b':')
    }

    /// Whether programs that are executed find the library, and the pools by it.
    pub fn is_within_reach(&self) -> bool {
        let exists = |path: Vec<u8>| {
            let args = [path.as_ptr() as usize, libc::F_OK as usize];
            kernel::checked(libc::SYS_access, &args).is_ok()
        };
        !ROOT_CHANGED.load(Ordering::Relaxed)
            || !root_is_in_a_pool() && exists([&self.library, b"\0".as_slice()].concat())
    }

    /// Whether a list of libraries to preload holds this one, or a copy of it in another folder:
    /// a program that loads both does not start.
    pub fn is_in(&self, list: &[u8]) -> bool {
        libraries(list).any(|one| self.is(one))
    }

    fn is(&self, library: &[u8]) -> bool {
        let name = file_name(&self.library);
        library == self.library || (!name.is_empty() && file_name(library) == name)
    }
}

/// The entries of a list of libraries to preload.
pub fn libraries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let all = list.split(|&b| b == b':' || b == b' ');
    all.filter(|one| !one.is_empty())
}

/// What follows the last slash of a path.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or_default()
}
