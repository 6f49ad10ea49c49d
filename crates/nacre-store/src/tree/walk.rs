//! Visiting every node of a tree: for scan and check, and to give the units of a removed object
//! back.

use nacre_types::{ObjectId, UnitNo};

use super::long_value::LongValue;
use super::read::TreeId;
use crate::alloc::Run;
use crate::error::{Result, StoreError};
use crate::layout::Tree;
use crate::store::Store;

/// A part of a tree that owns units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreePart {
    /// A node and its level (0 for leaves).
    Node(UnitNo, u8),
    /// An out-of-line value.
    Value(LongValue),
}

/// One inner node on the way down, and the child to visit next.
struct Descent {
    unit: UnitNo,
    above: Option<u8>,
    next: usize,
}

/// Visits a tree from `root` down, without locks. `visit` says whether to go below a node: a caller
/// that answers no for units it has seen ends on any graph. Damage below one node is given to
/// `damage` and the rest is visited all the same.
pub(crate) fn walk(
    store: &Store,
    object: ObjectId,
    tree: Tree,
    root: UnitNo,
    visit: &mut dyn FnMut(TreePart) -> bool,
    damage: &mut dyn FnMut(StoreError),
) {
    let which = TreeId { object, tree };
    let mut stack: Vec<Descent> = Vec::new();
    enter(store, which, root, None, &mut stack, visit, damage);
    while let Some(step) = stack.last_mut() {
        let (unit, index, above) = (step.unit, step.next, step.above);
        step.next += 1;
        match child_at(store, which, unit, above, index) {
            Ok(Some((child, level))) => {
                enter(store, which, child, Some(level), &mut stack, visit, damage);
            }
            Ok(None) => {
                stack.pop();
            }
            Err(error) => damage(error),
        }
    }
}

/// Frees all units of a tree whose object is durably gone. What cannot be read stays used until the
/// next rebuild.
pub(crate) fn release(store: &Store, object: ObjectId, tree: Tree, root: UnitNo) {
    let mut runs = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut visit = |part| {
        let run = match part {
            TreePart::Node(unit, _) => Run {
                start: unit,
                count: 1,
            },
            TreePart::Value(value) => value.run(),
        };
        let new = seen.insert(run.start);
        if new {
            runs.push(run);
        }
        new
    };
    walk(store, object, tree, root, &mut visit, &mut |_| {
        store.session.set_tainted()
    });
    for run in runs {
        store.allocator().free(run.start, run.count);
    }
}

/// Visits a node and what it owns itself; inner nodes go onto the stack.
fn enter(
    store: &Store,
    which: TreeId,
    unit: UnitNo,
    above: Option<u8>,
    stack: &mut Vec<Descent>,
    visit: &mut dyn FnMut(TreePart) -> bool,
    damage: &mut dyn FnMut(StoreError),
) {
    match node_level(store, which, unit, above) {
        Err(error) => damage(error),
        Ok(level) if !visit(TreePart::Node(unit, level)) => {}
        Ok(0) => {
            if let Err(error) = visit_values(store, which, unit, above, visit) {
                damage(error);
            }
        }
        Ok(_) => stack.push(Descent {
            unit,
            above,
            next: 0,
        }),
    }
}

fn node_level(store: &Store, which: TreeId, unit: UnitNo, above: Option<u8>) -> Result<u8> {
    Ok(store.node(which, unit, above)?.level())
}

fn child_at(
    store: &Store,
    which: TreeId,
    unit: UnitNo,
    above: Option<u8>,
    index: usize,
) -> Result<Option<(UnitNo, u8)>> {
    let view = store.node(which, unit, above)?;
    if index >= view.count() {
        return Ok(None);
    }
    let child = view.child(index, which.object);
    let child = child.map_err(|_| store.damaged(which, unit))?;
    Ok(Some((child, view.level())))
}

fn visit_values(
    store: &Store,
    which: TreeId,
    unit: UnitNo,
    above: Option<u8>,
    visit: &mut dyn FnMut(TreePart) -> bool,
) -> Result<()> {
    let view = store.node(which, unit, above)?;
    for index in 0..view.count() {
        let slot = view.slot(index).map_err(|_| store.damaged(which, unit))?;
        if !slot.overflow {
            continue;
        }
        let raw = view
            .overflow(&slot)
            .map_err(|_| store.damaged(which, unit))?;
        visit(TreePart::Value(store.long_value(which, unit, &raw)?));
    }
    Ok(())
}
