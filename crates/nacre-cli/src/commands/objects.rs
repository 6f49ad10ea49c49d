//! `nacre objects`.

mod bench;

use crate::failure::{Failure, Result};
use crate::output;
use clap::{Args, Subcommand};
use nacre_objects::{Error, OpenOptions, Pool, Transaction};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre objects list my.pool                     the collections
  nacre objects list my.pool accounts            the objects of one
  nacre objects put my.pool accounts anna FILE   from a file, else from standard input
  nacre objects get my.pool accounts anna        to standard output
  nacre objects stat my.pool accounts anna       size, attributes, omap
  nacre objects omap my.pool accounts anna       the keys of its omap
  nacre objects omap my.pool accounts anna KEY   the value of one
  nacre objects rm my.pool accounts anna
  nacre objects bench                            transactions like those of a Ceph OSD

Names and keys are printed as text; bytes that are none, and backslashes, as \\x7f, \\\\ and so on.
They are taken in the same form. `get` prints up to 1 GiB as it was at one moment, more in pieces.
docs/objects.md says what objects are.";

/// Names that are asked for at once.
const CHUNK: usize = 1000;
/// Bytes that are read or written at once.
const PIECE: usize = 4 << 20;
/// Objects up to this size are printed as they were at one moment.
const AT_ONCE: u64 = 1 << 30;

/// List, read and change the objects of a pool from outside
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List collections, or the objects of one
    List {
        /// Any device of the pool
        pool: PathBuf,
        /// Collection of which to list the objects
        collection: Option<String>,
    },
    /// Show size, attributes and omap of an object
    Stat(Named),
    /// Print the bytes of an object
    Get(Named),
    /// Write an object: it then holds what the file holds; a collection that is missing is made
    Put {
        #[command(flatten)]
        named: Named,
        /// What to write; without it, standard input
        file: Option<PathBuf>,
    },
    /// Remove an object
    Rm(Named),
    /// List the keys of an omap, or print the value of one
    Omap {
        #[command(flatten)]
        named: Named,
        /// Key of which to print the value
        key: Option<String>,
    },
    Bench(bench::Arguments),
}

#[derive(Debug, Args)]
struct Named {
    /// Any device of the pool
    pool: PathBuf,
    /// Name of the collection
    collection: String,
    /// Name of the object
    object: String,
}

/// An object of an opened pool.
struct Object {
    pool: Pool,
    path: PathBuf,
    collection: Vec<u8>,
    name: Vec<u8>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.action {
        Action::List { pool, collection } => list(pool, collection.as_deref())?,
        Action::Stat(named) => named.with(false, stat)?,
        Action::Get(named) => named.with(false, get)?,
        Action::Put { named, file } => named.with(true, |object| put(object, file.as_deref()))?,
        Action::Rm(named) => named.with(true, remove)?,
        Action::Omap { named, key } => named.with(false, |object| omap(object, key.as_deref()))?,
        Action::Bench(arguments) => bench::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Named {
    fn with(&self, write: bool, work: impl FnOnce(&Object) -> Result<()>) -> Result<()> {
        let object = Object {
            pool: open(&self.pool, write)?,
            path: self.pool.clone(),
            collection: bytes_of(&self.collection)?,
            name: bytes_of(&self.object)?,
        };
        let done = work(&object);
        let closed = object.pool.close().map_err(failure(&self.pool));
        done.and(closed)
    }
}

/// Without need to write, and without the right to, read-only.
fn open(path: &Path, write: bool) -> Result<Pool> {
    let open = |read_only| Pool::open(path, OpenOptions { read_only });
    let opened = match open(false) {
        Err(_) if !write => open(true),
        other => other,
    };
    opened.map_err(failure(path))
}

fn failure(pool: &Path) -> impl Fn(Error) -> Failure {
    let pool = pool.to_path_buf();
    move |error| match error {
        Error::Store(error) => crate::failure::store_failure(&pool, error),
        Error::Volume(error) => Failure::Volume(error),
        error => Failure::Objects {
            pool: pool.clone(),
            error: error.to_string(),
        },
    }
}

fn list(path: &Path, collection: Option<&str>) -> Result<()> {
    let pool = open(path, false)?;
    let collection = collection.map(bytes_of).transpose()?;
    let mut from = Vec::new();
    let done = loop {
        let names = match &collection {
            None => pool.collections(&from, CHUNK),
            Some(collection) => pool.objects(collection, &from, CHUNK),
        };
        let names = match names {
            Ok(names) => names,
            Err(error) => break Err(failure(path)(error)),
        };
        let Some(last) = names.last() else {
            break Ok(());
        };
        from = [last, &[0][..]].concat();
        print_names(&names)?;
    };
    let closed = pool.close().map_err(failure(path));
    done.and(closed)
}

fn print_names(names: &[Vec<u8>]) -> Result<()> {
    names
        .iter()
        .try_for_each(|name| output::write(format!("{}\n", text_of(name)).as_bytes()))
}

fn stat(object: &Object) -> Result<()> {
    let failure = failure(&object.path);
    let (collection, name) = (&object.collection, &object.name);
    let found = object.pool.stat(collection, name).map_err(&failure)?;
    let attributes = object.pool.attributes(collection, name).map_err(&failure)?;
    let mut text = format!("size: {}\n", found.size);
    for (name, value) in attributes {
        text += &format!("attribute {}: {} bytes\n", text_of(&name), value.len());
    }
    let header = object
        .pool
        .omap_header(collection, name)
        .map_err(&failure)?;
    if !header.is_empty() {
        text += &format!("omap header: {} bytes\n", header.len());
    }
    text += &format!("omap: {}\n", if found.has_omap { "yes" } else { "empty" });
    output::write(text.as_bytes())
}

fn get(object: &Object) -> Result<()> {
    let mut bytes = Vec::new();
    loop {
        let (len, size) = read(object, 0, &mut bytes)?;
        if len as u64 == size {
            return output::write(&bytes[..len]);
        }
        if size > AT_ONCE {
            return get_in_pieces(object);
        }
        bytes.resize(size as usize, 0);
    }
}

fn get_in_pieces(object: &Object) -> Result<()> {
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    loop {
        let (len, _) = read(object, at, &mut piece)?;
        if len == 0 {
            return Ok(());
        }
        output::write(&piece[..len])?;
        at += len as u64;
    }
}

/// How many bytes were read, and how many the object had then.
fn read(object: &Object, at: u64, to: &mut [u8]) -> Result<(usize, u64)> {
    let read = object
        .pool
        .read_with_size(&object.collection, &object.name, at, to);
    read.map_err(failure(&object.path))
}

/// All of it in one transaction: nobody sees half of a file.
fn put(object: &Object, file: Option<&Path>) -> Result<()> {
    let mut bytes = Vec::new();
    let read = match file {
        Some(file) => File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
        None => std::io::stdin().read_to_end(&mut bytes),
    };
    let from = file.map_or("standard input".into(), |file| file.display().to_string());
    read.map_err(|error| Failure::io(from, error))?;
    let failure = failure(&object.path);
    let (collection, name) = (&object.collection, &object.name);
    let mut t = Transaction::new();
    if !object.pool.has_collection(collection).map_err(&failure)? {
        t.create_collection(collection);
    }
    t.touch(collection, name).truncate(collection, name, 0);
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        t.write(collection, name, (index * PIECE) as u64, piece);
    }
    object.pool.commit(&t).map_err(&failure)
}

fn remove(object: &Object) -> Result<()> {
    let mut t = Transaction::new();
    t.remove(&object.collection, &object.name);
    object.pool.commit(&t).map_err(failure(&object.path))
}

fn omap(object: &Object, key: Option<&str>) -> Result<()> {
    let failure = failure(&object.path);
    let (collection, name) = (&object.collection, &object.name);
    if let Some(key) = key {
        let key = bytes_of(key)?;
        let value = object.pool.omap(collection, name, &key).map_err(&failure)?;
        let missing = || Error::NoSuchKey("omap key", text_of(&key));
        return output::write(&value.ok_or_else(|| failure(missing()))?);
    }
    let mut from = Vec::new();
    loop {
        let found = object
            .pool
            .omap_range(collection, name, &from, CHUNK)
            .map_err(&failure)?;
        let Some((last, _)) = found.last() else {
            return Ok(());
        };
        from = [last, &[0][..]].concat();
        for (key, value) in &found {
            output::write(format!("{} {}\n", text_of(key), value.len()).as_bytes())?;
        }
    }
}

/// Bytes as a line of text.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(|c: char| c.is_control() || c == '\\') => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// What [`text_of`] makes text of.
fn bytes_of(text: &str) -> Result<Vec<u8>> {
    let wrong = || {
        Failure::Usage(format!(
            "{text}: write \\\\ for a backslash, \\x7f for a byte"
        ))
    };
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().ok_or_else(wrong)? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next(), rest.next()].map(|d| d.map(char::from));
                let digit = |d: Option<char>| d.and_then(|d| d.to_digit(16));
                let [Some(high), Some(low)] = digits.map(digit) else {
                    return Err(wrong());
                };
                (high * 16 + low) as u8
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return Err(wrong()),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{bytes_of, text_of};

    #[test]
    fn names_are_taken_as_they_are_printed() {
        for bytes in [
            &b"anna"[..],
            "größe".as_bytes(),
            b"\0\x7f\xff\\ '\"\n\t",
            b"\\x41",
        ] {
            let text = text_of(bytes);
            assert_eq!(bytes_of(&text).unwrap(), bytes, "{text}");
            assert!(!text.contains('\n') && !text.contains('\0'), "{text}");
        }
        for wrong in ["\\", "\\x4", "\\xgg", "\\q"] {
            assert!(bytes_of(wrong).is_err(), "{wrong}");
        }
    }
}
