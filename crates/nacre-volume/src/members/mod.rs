//! Finding all devices of a pool, starting from some of them.

mod home;
pub(crate) mod labels;
pub(crate) mod presence;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Access, Device, Found, LegState, MediaError, Owner};
use nacre_runtime::{Trust, one_user, own_file};
use nacre_types::Uuid;
use rustix::io::Errno;

use crate::error::VolumeError;
use crate::label::stay::Stay;
use crate::label::{self, LabelDevice, LabelInfo};
use crate::layout::second_copy;
use crate::members::home::home_of;

/// A device of the pool, with its label.
pub(crate) struct Member {
    pub device: Arc<Device>,
    pub label: LabelInfo,
    /// Its place in the pool's newest table, once that is known.
    pub place: Option<usize>,
}

impl Member {
    pub fn open(path: &Path, access: Access) -> Result<Self, VolumeError> {
        let device = Arc::new(Device::open(path, access)?);
        if own_file(path)?.is_some_and(|own| own != device.identity().numbers()) {
            return Err(VolumeError::ForeignDevice(path.to_owned()));
        }
        let label = label::read(&device)?;
        Ok(Self::of(device, label))
    }

    /// The device at a path that nobody named: of those who may write the one that was.
    pub(crate) fn found(path: &Path, access: Access, trust: Trust) -> Result<Self, VolumeError> {
        let device = Device::open_found(path, access, |found| may_be_found(trust, found))?;
        let device = device.ok_or_else(|| VolumeError::ForeignDevice(path.to_owned()))?;
        let device = Arc::new(device);
        let label = label::read(&device)?;
        Ok(Self::of(device, label))
    }

    fn of(device: Arc<Device>, label: LabelInfo) -> Self {
        Self {
            device,
            label,
            place: None,
        }
    }

    pub fn uuid(&self) -> Uuid {
        self.label.own().uuid
    }

    fn path(&self) -> PathBuf {
        self.device.path().to_owned()
    }
}

/// All devices of a pool in table order, with the newest table.
pub(crate) struct Members {
    pub table: LabelInfo,
    pub members: Vec<Member>,
    /// The users who may have put devices where nobody named them.
    pub trust: Trust,
    /// Copies in whose place something else was found.
    pub damaged: Vec<Uuid>,
}

impl Members {
    /// Opens the devices at `paths`, all of one pool, and looks for the others where the newest
    /// label says.
    ///
    /// Meanwhile a device may leave: the other labels say so before its own is erased. So who finds
    /// that it is gone looks at them again.
    pub fn find(paths: &[&Path], access: Access) -> Result<Self, VolumeError> {
        let mut known = None;
        loop {
            let sequence = match Self::find_now(paths, access) {
                Err(error) if error.is_loss() || matches!(error, VolumeError::Missing { .. }) => {
                    let label = paths.first().map(|path| Member::open(path, access));
                    let sequence = label.and_then(|it| Some(it.ok()?.label.sequence));
                    if sequence.is_none() || sequence == known {
                        return Err(error);
                    }
                    sequence
                }
                found => return found,
            };
            known = sequence;
        }
    }

    fn find_now(paths: &[&Path], access: Access) -> Result<Self, VolumeError> {
        let mut found: Vec<Member> = Vec::new();
        for path in paths {
            let member = Member::open(path, access)?;
            refuse_repeated(&found, &member)?;
            found.push(member);
        }
        Self::complete(found, access)
    }

    /// The devices that are there.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        let members = self.members.iter();
        members.map(|member| Arc::clone(&member.device)).collect()
    }

    /// As [`Members::find`], from a device that nobody named.
    pub fn find_from(path: &Path, access: Access, trust: Trust) -> Result<Self, VolumeError> {
        Self::complete(vec![Member::found(path, access, trust)?], access)
    }

    fn complete(mut found: Vec<Member>, access: Access) -> Result<Self, VolumeError> {
        let named: Vec<Uuid> = found.iter().map(Member::uuid).collect();
        let folder = found
            .first()
            .and_then(|member| member.device.real_path().parent().map(Path::to_owned));
        let asked = found.first().map(Member::path).unwrap_or_default();
        let owner = found.first().map(|member| member.device.owner());
        let trust = trust_of(owner.ok_or(VolumeError::NoDevices)?);
        // A device found on the way may know a newer table; each round's is newer than the last, so
        // this ends.
        loop {
            let table = newest(&found)?.clone();
            let mut search = Search {
                found: without_strangers(found, &table, &named)?,
                asked: &asked,
                folder: folder.as_deref(),
                table: &table,
                access,
                trust,
            };
            let (members, damaged) = search.take_all()?;
            if newest(&members)?.sequence == table.sequence {
                if named.len() < members.len() {
                    refuse_copies(&members, &table, folder.as_deref(), trust)?;
                }
                if table.has_copies() {
                    refuse_diverged(&members)?;
                }
                let home = home_of(&members, &table);
                return Ok(Self {
                    table: LabelInfo { home, ..table },
                    members,
                    trust,
                    damaged,
                });
            }
            found = members;
        }
    }
}

/// Whether those who may write the device that was named may write one that was found, too. Else
/// who writes the first one's label would choose what a process with more rights writes to.
fn may_be_found(trust: Trust, Found { owner, is_node }: Found) -> bool {
    let bit = |of_all: u32| owner.mode & trust.mode & of_all != 0;
    let shared = bit(0o002) || bit(0o020) && owner.gid == trust.gid;
    let is_theirs = owner.uid == trust.uid || shared || one_user() == Some(trust.uid);
    // Root makes nodes, and gives them to groups that have nothing to do with the pool.
    is_theirs && (is_node || trust.accepts_owner(owner.uid, owner.gid, owner.mode))
}

pub(crate) fn trust_of(Owner { uid, gid, mode }: Owner) -> Trust {
    Trust { uid, gid, mode }
}

/// The label with the newest table; all must be of one pool.
fn newest(found: &[Member]) -> Result<&LabelInfo, VolumeError> {
    let pool = found.first().ok_or(VolumeError::NoDevices)?.label.pool;
    if let Some(foreign) = found.iter().find(|member| member.label.pool != pool) {
        return Err(VolumeError::Foreign {
            path: foreign.path(),
            found: foreign.label.pool,
            wanted: pool,
        });
    }
    found
        .iter()
        .map(|member| &member.label)
        .max_by_key(|label| label.sequence)
        .ok_or(VolumeError::NoDevices)
}

fn refuse_repeated(found: &[Member], member: &Member) -> Result<(), VolumeError> {
    for other in found {
        if other.device.identity() == member.device.identity() {
            return Err(VolumeError::SameDevice(other.path(), member.path()));
        }
        if other.label.pool == member.label.pool && other.uuid() == member.uuid() {
            let (first, second) = (other.path(), member.path());
            return Err(VolumeError::Copied {
                first,
                second,
                device: member.uuid(),
            });
        }
    }
    Ok(())
}

/// A device that was looked for may be there twice: the files of a pool and a copy of them must not
/// be used together, and nobody can tell which of them is meant.
fn refuse_copies(
    members: &[Member],
    table: &LabelInfo,
    folder: Option<&Path>,
    trust: Trust,
) -> Result<(), VolumeError> {
    for member in members {
        let entry = &table.devices[member.place.unwrap_or(0)];
        let here = member.device.real_path();
        for place in places(entry, folder).filter(|place| *place != here) {
            // What cannot be opened is no copy; what is wrong with it is not asked.
            let Ok(other) = Member::found(&place, Access::ReadOnly, trust) else {
                continue;
            };
            let same = other.label.pool == table.pool && other.uuid() == entry.uuid;
            if same && other.device.identity() != member.device.identity() {
                return Err(VolumeError::Copied {
                    first: place,
                    second: member.path(),
                    device: entry.uuid,
                });
            }
        }
    }
    Ok(())
}

/// Where a device should be: where it was last seen, or beside the device that was asked for.
pub(crate) fn places(entry: &LabelDevice, folder: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let beside = folder.and_then(|folder| Some(folder.join(entry.path.file_name()?)));
    let hint = Some(entry.path.clone()).filter(|path| path.is_absolute());
    let beside = beside.filter(|path| hint.as_ref() != Some(path));
    hint.into_iter().chain(beside)
}

/// Those that the table has. One that it has not left the pool (a crash may have kept its label,
/// and labels that name it): then it must not have been asked for.
fn without_strangers(
    found: Vec<Member>,
    table: &LabelInfo,
    named: &[Uuid],
) -> Result<Vec<Member>, VolumeError> {
    let listed = |member: &Member| {
        let mut devices = table.devices.iter();
        devices.any(|entry| entry.uuid == member.uuid() && entry.stay != Stay::Gone)
    };
    let (members, strangers): (Vec<_>, Vec<_>) = found.into_iter().partition(listed);
    match strangers.iter().find(|it| named.contains(&it.uuid())) {
        Some(stranger) => Err(VolumeError::NotAMember {
            path: stranger.path(),
            pool: table.pool,
        }),
        None => Ok(members),
    }
}

struct Search<'a> {
    /// Opened, but not yet taken.
    found: Vec<Member>,
    /// The device that the search started from.
    asked: &'a Path,
    /// Its folder.
    folder: Option<&'a Path>,
    table: &'a LabelInfo,
    access: Access,
    trust: Trust,
}

impl VolumeError {
    /// Whether a device is not there, not what it was, or no device of its pool any more.
    pub(crate) fn is_loss(&self) -> bool {
        let is_away = matches!(
            self,
            Self::Media(MediaError::NotFound(_)) | Self::NotAMember { .. }
        );
        is_away || is_damage(self)
    }
}

/// What the system answers for a device, or for the file system that it is on, which has failed.
const IS_DEAD: [Errno; 5] = [
    Errno::IO,
    Errno::NOTCONN,
    Errno::STALE,
    Errno::UCLEAN,
    Errno::NOMEDIUM,
];

/// Whether a device has failed, or something else is where it should be, or less of it. Whoever may
/// not use it does not know.
fn is_damage(error: &VolumeError) -> bool {
    if let VolumeError::Media(MediaError::System { errno, .. }) = error {
        return IS_DEAD.contains(errno);
    }
    matches!(
        error,
        VolumeError::Truncated { .. }
            | VolumeError::Unreadable(_)
            | VolumeError::LabelsDamaged(_)
            | VolumeError::NotAPool { .. }
            | VolumeError::Foreign { .. }
            | VolumeError::Swapped { .. }
    )
}

/// Whether something else stands where a device began.
fn is_written_over(member: &Member) -> bool {
    !member.label.intact && !label::begins_as_one(&member.device)
}

/// Nothing else has what a disk holds, and nothing tells whether it still does (D112).
fn refuse_written_over(member: &Member) -> Result<(), VolumeError> {
    match (is_written_over(member), member.label.own().size) {
        (false, _) => Ok(()),
        (true, size) => Err(VolumeError::WrittenOver {
            path: member.path(),
            label_at: second_copy(size).unwrap_or(0),
        }),
    }
}

/// Copies that were each used while the other was away, and that each say so.
fn refuse_diverged(members: &[Member]) -> Result<(), VolumeError> {
    let left = |from: &Member, other: &Member| {
        let entry = from.label.devices.iter().find(|it| it.uuid == other.uuid());
        let state = entry.and_then(|entry| entry.state);
        state.is_some_and(|state| !state.is_stored_to())
    };
    for (index, first) in members.iter().enumerate() {
        let others = &members[index + 1..];
        if let Some(second) = others.iter().find(|it| left(first, it) && left(it, first)) {
            return Err(VolumeError::Diverged(first.path(), second.path()));
        }
    }
    Ok(())
}

impl Search<'_> {
    /// All devices; of those that hold the same, as many as are there.
    fn take_all(&mut self) -> Result<(Vec<Member>, Vec<Uuid>), VolumeError> {
        let copies = self.table.has_copies();
        let (mut members, mut damaged) = (Vec::new(), Vec::new());
        let is_gone = |index: &usize| self.table.devices[*index].stay == Stay::Gone;
        let indexes: Vec<usize> = (0..self.table.devices.len())
            .filter(|it| !is_gone(it))
            .collect();
        for index in indexes {
            match self.take(index) {
                Ok(member) => members.push(Member {
                    place: Some(index),
                    ..member
                }),
                Err(VolumeError::Missing { .. }) if copies => {}
                Err(error) if copies && is_damage(&error) => {
                    damaged.push(self.table.devices[index].uuid);
                }
                Err(error) => return Err(error),
            }
        }
        if copies {
            self.drop_written_over(&mut members, &mut damaged);
        } else if self.table.is_parts() {
            members.iter().try_for_each(refuse_written_over)?;
        }
        match members.is_empty() {
            true => Err(VolumeError::NoCopyLeft(self.asked.to_owned())),
            false => Ok((members, damaged)),
        }
    }

    /// A copy that does not begin as one may hold something else behind that, too. It counts if no
    /// other one is current.
    fn drop_written_over(&self, members: &mut Vec<Member>, damaged: &mut Vec<Uuid>) {
        let is_whole = |it: &Member| !is_written_over(it);
        let is_current = |it: &Member| {
            let entry = it.place.map(|place| &self.table.devices[place]);
            entry.is_some_and(|entry| entry.state == Some(LegState::Current))
        };
        if members.iter().any(|it| is_current(it) && is_whole(it)) {
            let lost = members.extract_if(.., |it| !is_whole(it));
            damaged.extend(lost.map(|it| it.uuid()));
        }
    }

    /// The device of table entry `index`: among those opened so far, where it was last seen, beside
    /// the first one, or, because devices may have changed places, where another was last seen.
    fn take(&mut self, index: usize) -> Result<Member, VolumeError> {
        let mut reason = None;
        let (own, others) = self.candidates(index);
        for path in own {
            if self.is_found(index) {
                break;
            }
            match self.visit(index, &path) {
                Ok(()) | Err(VolumeError::Media(MediaError::NotFound(_))) => {}
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        for path in others {
            if !self.is_found(index) {
                // What is wrong with another device's place is told when that device is looked for.
                let _ = self.visit(index, &path);
            }
        }
        let wanted = &self.table.devices[index];
        let at = self
            .found
            .iter()
            .position(|member| member.uuid() == wanted.uuid);
        let at = at.ok_or_else(|| reason.unwrap_or_else(|| self.missing(index)))?;
        whole(self.found.swap_remove(at), wanted)
    }

    fn is_found(&self, index: usize) -> bool {
        self.found
            .iter()
            .any(|member| member.uuid() == self.table.devices[index].uuid)
    }

    /// Opens what is at `path` and keeps it if it is a device of the pool that is still looked for.
    fn visit(&mut self, index: usize, path: &Path) -> Result<(), VolumeError> {
        let member = Member::found(path, self.access, self.trust).map_err(|error| match error {
            VolumeError::ForeignDevice(_) if self.table.has_copies() => self.of_stranger(path),
            other => other,
        })?;
        let (found, wanted) = (member.uuid(), self.table.devices[index].uuid);
        if member.label.pool != self.table.pool {
            let (path, found) = (path.to_owned(), member.label.pool);
            return Err(VolumeError::Foreign {
                path,
                found,
                wanted: self.table.pool,
            });
        }
        let later = self.table.devices[index..]
            .iter()
            .any(|entry| entry.uuid == found);
        if later && !self.found.iter().any(|other| other.uuid() == found) {
            self.found.push(member);
        }
        if found == wanted {
            Ok(())
        } else {
            Err(VolumeError::Swapped {
                path: path.to_owned(),
                index,
                wanted,
                found,
            })
        }
    }

    /// Why what a stranger has put where a copy should be is not taken. It keeps the pool from
    /// being used only if it seems to be a device of it.
    fn of_stranger(&self, path: &Path) -> VolumeError {
        let foreign = VolumeError::ForeignDevice(path.to_owned());
        let kind = std::fs::metadata(path).map(|it| it.file_type());
        // To open anything else may be an act in itself.
        if !kind.is_ok_and(|kind| kind.is_file()) {
            return foreign;
        }
        let opened = Device::open_found(path, Access::ReadOnly, |it| !it.is_node);
        let Ok(Some(device)) = opened else {
            return foreign;
        };
        match label::read(&Arc::new(device)) {
            Ok(label) if label.pool != self.table.pool => VolumeError::Foreign {
                path: path.to_owned(),
                found: label.pool,
                wanted: self.table.pool,
            },
            Ok(_) => foreign,
            Err(error) => error,
        }
    }

    /// Places where the device itself should be, and where others should be.
    fn candidates(&self, index: usize) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let others = self
            .table
            .devices
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != index);
        (
            places(&self.table.devices[index], self.folder).collect(),
            others
                .flat_map(|(_, entry)| places(entry, self.folder))
                .collect(),
        )
    }

    fn missing(&self, index: usize) -> VolumeError {
        let entry = &self.table.devices[index];
        VolumeError::Missing {
            asked: self.asked.to_owned(),
            path: entry.path.clone(),
            index,
            device: entry.uuid,
            pool: self.table.pool,
        }
    }
}

/// The member, unless it is shorter than its table entry says.
fn whole(member: Member, entry: &LabelDevice) -> Result<Member, VolumeError> {
    let (recorded, actual) = (entry.size, member.device.len());
    if actual < recorded {
        return Err(VolumeError::Truncated {
            path: member.path(),
            actual,
            recorded,
        });
    }
    Ok(member)
}

#[cfg(test)]
mod tests {
    use super::{Errno, MediaError, PathBuf, VolumeError};

    #[test]
    fn a_device_that_gives_errors_is_lost_and_one_that_may_not_be_used_is_not() {
        let answers = |errno| {
            let (path, action) = (PathBuf::from("b"), "examine it");
            VolumeError::from(MediaError::System {
                path,
                action,
                errno,
            })
        };
        for errno in [Errno::IO, Errno::NOTCONN, Errno::STALE] {
            assert!(answers(errno).is_loss(), "{errno}");
        }
        assert!(VolumeError::Unreadable("b".into()).is_loss());
        for errno in [Errno::NOMEM, Errno::MFILE] {
            assert!(!answers(errno).is_loss(), "{errno}");
        }
        let denied = MediaError::PermissionDenied("b".into());
        assert!(!VolumeError::from(denied).is_loss());
    }
}
