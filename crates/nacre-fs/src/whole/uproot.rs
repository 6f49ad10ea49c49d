//! Removing a tree.

use crate::Fs;
use crate::error::Result;
use crate::inode::is_directory;
use crate::whole::hold::{Held, Member, Survey};
use nacre_store::{ChangeMark, Tree, Tx};
use nacre_types::{ObjectId, Timestamp};

/// Removes all members of a locked tree from number `first` on, with their names in it. What
/// somebody has open stays without a name until it is closed. The marks live until the commit.
pub(crate) fn uproot<'h>(
    fs: &Fs,
    tx: &mut Tx<'_>,
    held: &'h Held<'_>,
    tree: &Survey,
    first: usize,
) -> Result<Vec<ChangeMark<'h>>> {
    let now = fs.store.now();
    let mut stays = vec![false; tree.members.len()];
    let mut marks = Vec::with_capacity(tree.members.len());
    for (number, member) in tree.members.iter().enumerate() {
        if number < first {
            stays[number] = true;
            continue;
        }
        // Whoever pins it meanwhile either is counted here or sees the result.
        marks.push(held.guard(member).begin_change());
        stays[number] = stays_nameless(fs, member)?;
    }
    for name in &tree.names {
        if stays[name.dir] {
            let dir = tree.members[name.dir].id;
            tx.tree_remove(dir, Tree::Entries, tree.key(name))?;
        }
    }
    for (member, stays) in tree.members.iter().zip(&stays).skip(first) {
        match stays {
            true => leave_nameless(tx, member, now)?,
            false => tx.remove(member.id)?,
        }
    }
    Ok(marks)
}

/// Whether somebody has it open, or it has names elsewhere.
fn stays_nameless(fs: &Fs, member: &Member) -> Result<bool> {
    let elsewhere = !is_directory(&member.attrs) && member.attrs.nlink > member.links;
    Ok(elsewhere || fs.is_pinned(member.id)?)
}

fn leave_nameless(tx: &mut Tx<'_>, member: &Member, now: Timestamp) -> Result<()> {
    let left = match is_directory(&member.attrs) {
        true => 0,
        false => member.attrs.nlink.saturating_sub(member.links),
    };
    let id: ObjectId = member.id;
    Ok(tx.set_attrs(id, |attrs| {
        attrs.nlink = left;
        attrs.ctime = now.0;
    })?)
}
