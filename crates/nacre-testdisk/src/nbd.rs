//! The disk over a socket, as the network block device protocol has it
//! (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md), for virtual machines.

use std::io::{self, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::volatile::Disk;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Fixed newstyle, no zeros behind the export.
const HANDSHAKE: u16 = 0b11;
/// It has flags, can be flushed, and can write through its cache.
const EXPORT_FLAGS: u16 = 0b1101;
const THROUGH: u16 = 1;
const EIO: u32 = 5;
/// A request may not be longer.
const LONGEST: u32 = 64 << 20;

mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
}

mod answer {
    pub(super) const ACK: u32 = 1;
    pub(super) const INFO: u32 = 3;
    pub(super) const UNSUPPORTED: u32 = 0x8000_0001;
}

mod command {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const DISCONNECT: u16 = 2;
    pub(super) const FLUSH: u16 = 3;
}

/// Serves a disk at a socket until the process ends.
pub struct NbdServer {
    cuts: Receiver<io::Result<()>>,
}

impl NbdServer {
    /// Whoever disconnects, in whatever way, has lost power; `below(n)` decides what the disk
    /// keeps.
    pub fn start(
        disk: Arc<Disk>,
        socket: &Path,
        below: impl FnMut(u64) -> u64 + Send + 'static,
    ) -> io::Result<NbdServer> {
        let listener = UnixListener::bind(socket)?;
        let (sender, cuts) = channel();
        thread::spawn(move || serve_all(&disk, &listener, &sender, below));
        Ok(NbdServer { cuts })
    }

    /// Waits until the disk has lost its power after the machine did.
    pub fn await_cut(&self, patience: Duration) -> io::Result<()> {
        match self.cuts.recv_timeout(patience) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn serve_all(
    disk: &Disk,
    listener: &UnixListener,
    cuts: &Sender<io::Result<()>>,
    mut below: impl FnMut(u64) -> u64,
) {
    for stream in listener.incoming().map_while(Result::ok) {
        disk.power_on();
        // However the connection ends, the machine is off.
        let _ended = Connection::new(&stream).serve(disk);
        if cuts.send(disk.cut(&mut below)).is_err() {
            return;
        }
    }
}

struct Connection<'a> {
    from: &'a UnixStream,
    to: BufWriter<&'a UnixStream>,
}

struct Wanted {
    flags: u16,
    command: u16,
    cookie: u64,
    at: u64,
    len: u32,
}

impl<'a> Connection<'a> {
    fn new(stream: &'a UnixStream) -> Connection<'a> {
        Connection {
            from: stream,
            to: BufWriter::new(stream),
        }
    }

    fn serve(&mut self, disk: &Disk) -> io::Result<()> {
        if !self.agree(disk.len())? {
            return Ok(());
        }
        loop {
            let wanted = self.request()?;
            if wanted.command == command::DISCONNECT {
                return Ok(());
            }
            self.execute(disk, &wanted)?;
            self.to.flush()?;
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn long(&mut self, len: u32) -> io::Result<Vec<u8>> {
        if len > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The handshake. Whether the machine goes on.
    fn agree(&mut self, len: u64) -> io::Result<bool> {
        self.to.write_all(&MAGIC.to_be_bytes())?;
        self.to.write_all(&OPTION_MAGIC.to_be_bytes())?;
        self.to.write_all(&HANDSHAKE.to_be_bytes())?;
        self.to.flush()?;
        let _flags = self.u32()?;
        loop {
            if self.u64()? != OPTION_MAGIC {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let (chosen, rest) = (self.u32()?, self.u32()?);
            let _data = self.long(rest)?;
            let export = [&len.to_be_bytes()[..], &EXPORT_FLAGS.to_be_bytes()].concat();
            match chosen {
                option::EXPORT_NAME => self.to.write_all(&export)?,
                option::INFO | option::GO => {
                    let about = [&[0, 0], &export[..]].concat();
                    self.answer(chosen, answer::INFO, &about)?;
                    self.answer(chosen, answer::ACK, &[])?;
                }
                option::ABORT => self.answer(chosen, answer::ACK, &[])?,
                _ => self.answer(chosen, answer::UNSUPPORTED, &[])?,
            }
            self.to.flush()?;
            match chosen {
                option::EXPORT_NAME | option::GO => return Ok(true),
                option::ABORT => return Ok(false),
                _ => {}
            }
        }
    }

    fn answer(&mut self, chosen: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        self.to.write_all(&OPTION_REPLY_MAGIC.to_be_bytes())?;
        for word in [chosen, kind, data.len() as u32] {
            self.to.write_all(&word.to_be_bytes())?;
        }
        self.to.write_all(data)
    }

    fn request(&mut self) -> io::Result<Wanted> {
        if self.u32()? != REQUEST_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Wanted {
            flags: self.u16()?,
            command: self.u16()?,
            cookie: self.u64()?,
            at: self.u64()?,
            len: self.u32()?,
        })
    }

    fn execute(&mut self, disk: &Disk, wanted: &Wanted) -> io::Result<()> {
        let mut read = Vec::new();
        let done = match wanted.command {
            command::READ => {
                read = vec![0; wanted.len.min(LONGEST) as usize];
                disk.read(wanted.at, &mut read)
            }
            command::WRITE => {
                let bytes = self.long(wanted.len)?;
                disk.write(wanted.at, &bytes, wanted.flags & THROUGH != 0)
            }
            command::FLUSH => disk.flush(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        let error = if done.is_ok() { 0 } else { EIO };
        self.to.write_all(&REPLY_MAGIC.to_be_bytes())?;
        self.to.write_all(&error.to_be_bytes())?;
        self.to.write_all(&wanted.cookie.to_be_bytes())?;
        match done {
            Ok(()) => self.to.write_all(&read),
            Err(_) => Ok(()),
        }
    }
}
