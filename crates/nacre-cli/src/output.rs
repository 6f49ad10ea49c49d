//! Text, JSON and progress bars.

use crate::failure::{Failure, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nacre_runtime::may_be_of_others;
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often a sign of life changes.
const TURN_EVERY: Duration = Duration::from_millis(200);

/// Makes or empties a file that the caller named. Where everybody makes names, one that somebody
/// else may have put there is refused.
pub fn create(path: &Path) -> Result<File> {
    let failed = |error| Failure::io(path.display(), error);
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other.map_err(failed),
    }
    refuse_of_others(path)?;
    File::create(path).map_err(failed)
}

/// Refuses what somebody else may have put where everybody makes names. What is missing is fine.
pub fn refuse_of_others(path: &Path) -> Result<()> {
    match may_be_of_others(path) {
        Ok(true) => Err(Failure::ForeignName(path.to_path_buf())),
        Ok(false) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Failure::io(path.display(), errno)),
    }
}

/// Writes a whole file, as [`create`] makes it.
pub fn save(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let written = create(path)?.write_all(bytes.as_ref());
    written.map_err(|error| Failure::io(path.display(), error))
}

/// Prints one JSON document on standard output.
pub fn json(document: &impl Serialize) -> Result<()> {
    write(json_text(document)?.as_bytes())
}

/// One JSON document, a line of its own behind each field.
pub fn json_text(document: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::io("standard output", error))?;
    text.push('\n');
    Ok(text)
}

/// Prints text on standard output. A reader that went away is no error worth a message.
pub fn write(text: &[u8]) -> Result<()> {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::io("standard output", error))
        }
        _ => Ok(()),
    }
}

/// Says why a command did not succeed, and which limit stood in its way.
pub fn tell(failure: &Failure) {
    // Names of others are in it: they say nothing to the terminal.
    let text = failure.to_string();
    let lines: Vec<String> = text.split('\n').map(harmless).collect();
    eprintln!("nacre: {}", lines.join("\n"));
    if let Some(limit) = nacre_media::met_limit() {
        eprintln!(
            "nacre: files may have {limit} bytes here (`ulimit -f`), and those of a pool are \
             larger; raise the limit for nacre, programs may set theirs below `nacre run`"
        );
    }
    if !Path::new("/proc/self/fd").exists() {
        eprintln!("nacre: pools need /proc, which is not mounted here: `mount -t proc proc /proc`");
    }
    if let Some(remedy) = nacre_media::remedy_for_few_fds(&text) {
        eprintln!("nacre: {remedy}");
    }
}

/// Text that somebody else may have chosen (a name in a pool), for a line of a terminal.
pub fn harmless(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// A name in a pool for a line of a terminal. JSON has it as it is.
pub fn harmless_name(name: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(name))
}

/// A word of a command line, to be copied to a shell.
pub fn in_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// What a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Bytes,
    Steps,
}

/// A bar for long work, on standard error and only on a terminal.
pub fn bar(total: u64, what: &str, counted: Counted) -> ProgressBar {
    let counts = match counted {
        Counted::Bytes => "{bytes}/{total_bytes} {binary_bytes_per_sec}",
        Counted::Steps => "{human_pos}/{human_len} {per_sec}",
    };
    let template = format!("{{msg}} {{wide_bar}} {counts} {{eta}}");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar
}

/// A sign of life for work whose length is not known, on standard error and only on a terminal.
pub struct Spinner {
    bar: ProgressBar,
    ticking: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Spinner {
    /// Turns from now on, or stands still if the system gives no thread for it.
    pub fn new(what: String) -> Spinner {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_message(what);
        let (end, ended) = channel();
        let turning = bar.clone();
        let turn = move || {
            while ended.recv_timeout(TURN_EVERY) == Err(RecvTimeoutError::Timeout) {
                turning.tick();
            }
        };
        let is_seen = !bar.is_hidden();
        let thread = is_seen.then(|| Builder::new().spawn(turn).ok()).flatten();
        let ticking = thread.map(|thread| (end, thread));
        Spinner { bar, ticking }
    }

    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.ticking.take() {
            drop(end);
            let _nothing_to_say = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// Where the picture of the first of several things goes, or of a further one: a number stands
/// before the extension.
pub fn numbered(path: &Path, number: usize) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_extension(format!("{number}.{extension}"))
}

#[cfg(test)]
mod tests {
    use super::{harmless_name, in_shell, numbered};
    use std::path::{Path, PathBuf};

    #[test]
    fn names_say_nothing_to_a_terminal() {
        let shown = harmless_name("a\x1b[2J\u{9b}m\n größe\x7f".as_bytes());
        assert_eq!(shown, "a?[2J?m? größe?");
    }

    #[test]
    fn words_come_out_of_a_shell_as_they_were() {
        for word in ["/srv/a.pool", "", "a b", "it's", "$HOME", "~/x", "-größe"] {
            let line = format!("printf %s {}", in_shell(word));
            let said = std::process::Command::new("sh")
                .args(["-c", &line])
                .output();
            assert_eq!(String::from_utf8_lossy(&said.expect("sh").stdout), word);
        }
        assert_eq!(in_shell("/srv/a.pool"), "/srv/a.pool");
    }

    #[test]
    fn further_pictures_are_numbered() {
        assert_eq!(numbered(Path::new("a/h.svg"), 0), PathBuf::from("a/h.svg"));
        assert_eq!(
            numbered(Path::new("a/h.svg"), 2),
            PathBuf::from("a/h.2.svg")
        );
    }
}
