//! The bytes of the kernel's FUSE protocol, version 7.31 and later (include/uapi/linux/fuse.h).

use crate::errno::Answer;
use rustix::io::Errno;

/// Bytes of the header of a request, and of an answer.
pub(crate) const REQUEST_HEADER: usize = 40;
pub(crate) const ANSWER_HEADER: usize = 16;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opcode(pub(crate) u32);

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        impl Opcode {
            $(pub(crate) const $name: Opcode = Opcode($number);)*
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
    MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16,
    STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23,
    REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
    FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, CREATE = 35, INTERRUPT = 36, DESTROY = 38,
    IOCTL = 39, BATCH_FORGET = 42, FALLOCATE = 43, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47,
    SYNCFS = 50, TMPFILE = 51, STATX = 52,
}

/// The caller of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A request of the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) opcode: Opcode,
    /// Number of the request.
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) caller: Caller,
    pub(crate) body: Input<'a>,
}

impl<'a> Request<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Answer<Request<'a>> {
        let mut header = Input(bytes);
        let _len = header.u32()?;
        let opcode = Opcode(header.u32()?);
        let (unique, node) = (header.u64()?, header.u64()?);
        let caller = Caller {
            uid: header.u32()?,
            gid: header.u32()?,
        };
        let _pid_and_padding = header.u64()?;
        Ok(Request {
            opcode,
            unique,
            node,
            caller,
            body: header,
        })
    }
}

/// What is left of a request. What is too short is an error of the kernel's.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const LEN: usize>(&mut self) -> Answer<[u8; LEN]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Answer<u32> {
        Ok(u32::from_ne_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Answer<u64> {
        Ok(u64::from_ne_bytes(self.take()?))
    }

    /// A text up to its zero byte.
    pub(crate) fn name(&mut self) -> Answer<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or(Errno::PROTO)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Answer<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// An answer, with room for its header.
pub(crate) struct Output(Vec<u8>);

impl Output {
    pub(crate) fn new() -> Output {
        Output(vec![0; ANSWER_HEADER])
    }

    /// `len` bytes, which `fill` fills as far as it says.
    pub(crate) fn filled(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Answer<usize>,
    ) -> Answer<Self> {
        let mut all = vec![0; ANSWER_HEADER + len];
        let len = fill(&mut all[ANSWER_HEADER..])?;
        all.truncate(ANSWER_HEADER + len);
        Ok(Output(all))
    }

    /// Bytes behind the header.
    pub(crate) fn len(&self) -> usize {
        self.0.len() - ANSWER_HEADER
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// All of it, as the answer to a request.
    pub(crate) fn message(&mut self, unique: u64, errno: i32) -> &[u8] {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        self.0[8..ANSWER_HEADER].copy_from_slice(&unique.to_ne_bytes());
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Opcode, Output, Request};

    #[test]
    fn requests_are_decoded_and_answers_have_their_header() {
        let mut bytes = Vec::new();
        for word in [48u32, 1, 7, 0, 3, 0, 1000, 100, 0, 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(b"name\0x\0y");
        let request = Request::decode(&bytes).ok().unwrap();
        assert_eq!(request.opcode, Opcode::LOOKUP);
        assert_eq!((request.unique, request.node), (7, 3));
        assert_eq!((request.caller.uid, request.caller.gid), (1000, 100));
        let mut body = request.body;
        assert_eq!(body.name().ok(), Some(&b"name"[..]));
        assert_eq!(body.name().ok(), Some(&b"x"[..]));
        assert!(body.name().is_err() && body.u32().is_err());
        assert!(Request::decode(&bytes[..39]).is_err());
        let mut answer = Output::new();
        answer.u32(5);
        let message = answer.message(7, 2);
        assert_eq!(message.len(), 20);
        assert_eq!(message[..8], [20, 0, 0, 0, 254, 255, 255, 255]);
    }
}
