//! Errors must say what is damaged and where.

use nacre_store::StoreError;

/// Whether an error that refuses a pool says which structure is damaged, and where it lies.
pub fn names_place(error: &StoreError) -> Result<(), String> {
    match error {
        StoreError::Corrupt(_) => located(&error.to_string()),
        StoreError::NotAPool
        | StoreError::NewerFormat { .. }
        | StoreError::OlderFormat { .. }
        | StoreError::UnknownFeatures(_)
        | StoreError::Shrunk { .. } => Ok(()),
        other => Err(format!("attach fails with {other}")),
    }
}

/// Whether what an error says leads to a structure.
pub fn located(text: &str) -> Result<(), String> {
    let nowhere = text.contains("offset 0x0 ") && !text.contains("superblock");
    let somewhere = text.contains("offset 0x") || text.contains("object ");
    match somewhere && !nowhere {
        true => Ok(()),
        false => Err(format!("an error does not say where: {text}")),
    }
}
