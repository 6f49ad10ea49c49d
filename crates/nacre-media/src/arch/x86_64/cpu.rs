//! What this processor can do, as the dynamic linker has found out. To ask the processor itself
//! takes microseconds under a hypervisor, in every program that starts.

/// Leaf 7 of `cpuid`: its number in the C library, glibc's `CPUID_INDEX_7`.
const LEAF_7: u32 = 1;

/// glibc's `struct cpuid_feature`: eax, ebx, ecx, edx.
#[repr(C)]
struct Leaf {
    /// As the processor tells.
    present: [u32; 4],
    /// What of it programs may use.
    usable: [u32; 4],
}

unsafe extern "C" {
    /// From glibc 2.33 on; zeros for leaves that it does not know.
    fn __x86_get_cpuid_feature_leaf(leaf: u32) -> *const Leaf;
}

/// Features of leaf 7, as bits of ebx.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Feature {
    Avx2 = 1 << 5,
    /// Fast `rep movsb`.
    Erms = 1 << 9,
    ClflushOpt = 1 << 23,
    Clwb = 1 << 24,
    Avx512Vl = 1 << 31,
}

/// Whether programs may use it.
pub(super) fn has(feature: Feature) -> bool {
    // SAFETY: the dynamic linker's own, constant since before any of our code ran, never null.
    let leaf = unsafe { &*__x86_get_cpuid_feature_leaf(LEAF_7) };
    let known = match feature {
        Feature::Avx2 | Feature::Avx512Vl => leaf.usable,
        Feature::Erms | Feature::ClflushOpt | Feature::Clwb => leaf.present,
    };
    let [_, ebx, _, _] = known;
    ebx & feature as u32 != 0
}

#[cfg(test)]
mod tests {
    use super::{Feature, has};
    use std::arch::{is_x86_feature_detected, x86_64::__cpuid_count};

    #[test]
    fn the_dynamic_linker_and_the_processor_agree() {
        let ebx = __cpuid_count(7, 0).ebx;
        for feature in [Feature::Erms, Feature::ClflushOpt, Feature::Clwb] {
            assert_eq!(has(feature), ebx & feature as u32 != 0, "{feature:?}");
        }
        assert_eq!(has(Feature::Avx2), is_x86_feature_detected!("avx2"));
        assert_eq!(has(Feature::Avx512Vl), is_x86_feature_detected!("avx512vl"));
    }
}
