//! A place to measure in, and the processes that do so.

use super::backend::Backend;
use super::row::{Row, Scale};
use super::statistics::Figures;
use super::worker::{Job, Reply, Request};
use crate::failure::{Failure, Result};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Rows have at most so many processes.
const PROCESSES: usize = 2;
/// The worker for rows of several threads: who had a second thread once has no shortcuts of a
/// single one any more.
const THREADED: usize = PROCESSES;

pub struct Worker {
    child: Child,
    /// Closed to end the worker.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// A place and its workers.
pub struct Site {
    pub place: Backend,
    pub folder: PathBuf,
    pub workers: Vec<Worker>,
}

/// What became of a row in a place.
pub enum Outcome {
    Measured(Figures),
    Nothing,
    Failed(String),
}

/// This program, wherever it lies.
const OURSELVES: &str = "/proc/self/exe";

impl Site {
    /// Starts the workers; `prepare` adds what their environment needs.
    pub fn start(place: Backend, folder: &Path, prepare: impl Fn(&mut Command)) -> Result<Site> {
        let start = || {
            let mut command = Command::new(OURSELVES);
            command.arg("bench-worker");
            if place == Backend::Raw {
                command.arg("--raw");
            }
            command.arg(folder);
            prepare(&mut command);
            Worker::start(command)
        };
        Ok(Site {
            place,
            folder: folder.to_path_buf(),
            workers: (0..=THREADED).map(|_| start()).collect::<Result<_>>()?,
        })
    }

    /// Measures a row with as many workers as it wants, all at the same time.
    pub fn measure(&mut self, row: &Row, budget: Duration, scale: Scale) -> Result<Outcome> {
        let workers = match row.threads {
            1 => &mut self.workers[..row.processes],
            _ => &mut self.workers[THREADED..],
        };
        for (part, worker) in workers.iter_mut().enumerate() {
            worker.send(&Request::Row(Job {
                row: row.clone(),
                part,
                budget,
                scale,
            }))?;
        }
        let mut replies = workers
            .iter_mut()
            .map(Worker::hear)
            .collect::<Result<Vec<_>>>()?;
        for (reply, worker) in replies.iter().zip(workers.iter_mut()) {
            if matches!(reply, Reply::Ready) {
                worker.say(b"\n")?;
            }
        }
        for (reply, worker) in replies.iter_mut().zip(workers.iter_mut()) {
            if matches!(reply, Reply::Ready) {
                *reply = worker.hear()?;
            }
        }
        Ok(outcome(replies))
    }

    /// Asks one worker for its private memory, in bytes.
    pub fn memory(&mut self) -> Result<u64> {
        match self.workers[0].ask(&Request::Memory)? {
            Reply::Bytes(bytes) => Ok(bytes),
            other => Err(self.unexpected("memory", &other)),
        }
    }

    /// Removes what the workers made.
    pub fn clear(&mut self) -> Result<()> {
        match self.workers[0].ask(&Request::Clear)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected("clear", &other)),
        }
    }

    pub fn unexpected(&self, asked: &str, reply: &Reply) -> Failure {
        let text = match reply {
            Reply::Failed(error) => error.clone(),
            other => format!("{other:?}"),
        };
        let place = self.place.name();
        Failure::io(
            format!("worker on {place}, {asked}"),
            std::io::Error::other(text),
        )
    }
}

/// Of what all workers of a row said.
fn outcome(replies: Vec<Reply>) -> Outcome {
    let mut figures = Vec::new();
    for reply in replies {
        match reply {
            Reply::Measured(measured) => figures.push(measured),
            Reply::Nothing => return Outcome::Nothing,
            Reply::Failed(error) => return Outcome::Failed(error),
            other => return Outcome::Failed(format!("unexpected answer {other:?}")),
        }
    }
    match figures[..] {
        [only] => Outcome::Measured(only),
        _ => Outcome::Measured(Figures::side_by_side(&figures)),
    }
}

impl Worker {
    fn start(mut command: Command) -> Result<Worker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            error,
        })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(lost("no pipe"));
        };
        Ok(Worker {
            child,
            input: Some(input),
            output: BufReader::new(output),
        })
    }

    pub fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.send(request)?;
        self.hear()
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line =
            serde_json::to_vec(request).map_err(|error| Failure::io("request", error))?;
        line.push(b'\n');
        self.say(&line)
    }

    fn say(&mut self, line: &[u8]) -> Result<()> {
        let input = self.input.as_mut().ok_or_else(|| lost("closed"))?;
        input.write_all(line).map_err(lost)
    }

    fn hear(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.output.read_line(&mut line).map_err(lost)? == 0 {
            return Err(lost("it ended early"));
        }
        serde_json::from_str(&line).map_err(lost)
    }
}

fn lost(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::io("worker", std::io::Error::other(error))
}

impl Drop for Worker {
    /// Lets it end by itself, so that it leaves the pool properly.
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.child.wait() {
            eprintln!("nacre: worker {}: {error}", self.child.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, outcome};
    use crate::bench::statistics::Figures;
    use crate::bench::worker::Reply;

    #[test]
    fn one_failure_fails_the_row() {
        let replies = vec![
            Reply::Measured(Figures::exactly(1.0)),
            Reply::Failed("disk on fire".into()),
        ];
        assert!(matches!(outcome(replies), Outcome::Failed(text) if text.contains("fire")));
    }

    #[test]
    fn workers_are_added_up() {
        let replies = vec![
            Reply::Measured(Figures::exactly(10.0)),
            Reply::Measured(Figures::exactly(10.0)),
        ];
        assert!(matches!(outcome(replies), Outcome::Measured(both) if both.mean == 5.0));
        assert!(matches!(outcome(vec![Reply::Nothing]), Outcome::Nothing));
    }
}
