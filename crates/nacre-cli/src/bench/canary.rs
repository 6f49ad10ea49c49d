//! Proof that a worker really works where its figures are said to come from.

use super::site::Site;
use super::worker::{CANARY, Reply, Request};
use crate::attached::Attached;
use crate::failure::{Failure, Result, fs_failure};
use crate::tree_path::Location as Spot;
use nacre_types::FileOffset;
use nacre_types::Uuid;
use nacre_volume::UserBytesMut;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Lets every worker of the pool write a file, which must be in the pool and nowhere else.
pub fn in_pool(site: &mut Site, pool: &Attached, inside: &str) -> Result<()> {
    for index in 0..site.workers.len() {
        let token = sing(site, index)?;
        let on_host = site.folder.join(CANARY);
        if on_host.exists() {
            return Err(not_intercepted(&on_host));
        }
        let mut place = OsString::from(&pool.path);
        place.push(format!(":/{inside}/{CANARY}"));
        if read(pool, &Spot::parse_tree(&place))? != token.as_bytes() {
            return Err(not_intercepted(&on_host));
        }
    }
    Ok(())
}

/// Lets every worker of a kernel file system write a file, which the host must see.
pub fn on_host(site: &mut Site) -> Result<()> {
    for index in 0..site.workers.len() {
        let token = sing(site, index)?;
        let path = site.folder.join(CANARY);
        let found = fs::read(&path).map_err(|error| Failure::io(path.display(), error))?;
        if found != token.as_bytes() {
            return Err(Failure::Usage(format!(
                "{}: is not what the worker wrote; is this nacre itself run by `nacre run`?",
                path.display()
            )));
        }
    }
    Ok(())
}

fn sing(site: &mut Site, index: usize) -> Result<String> {
    let token = Uuid::random().to_string();
    match site.workers[index].ask(&Request::Canary(token.clone()))? {
        Reply::Done => Ok(token),
        other => Err(site.unexpected("canary", &other)),
    }
}

fn read(pool: &Attached, place: &crate::tree_path::TreePath) -> Result<Vec<u8>> {
    let node = place.find(&pool.fs)?.node;
    let mut buffer = vec![0; 256];
    let to = UserBytesMut::from(&mut buffer[..]);
    let read = pool.fs.read(node, FileOffset(0), to);
    let len = read.map_err(fs_failure(place))?;
    buffer.truncate(len as usize);
    Ok(buffer)
}

pub fn not_intercepted(path: &Path) -> Failure {
    Failure::Usage(format!(
        "{}: the worker's file is on the host, not in the pool: its calls are not intercepted, and nothing was measured; look at the worker with NACRE_LOG=1, and at NACRE_PRELOAD",
        path.display()
    ))
}
