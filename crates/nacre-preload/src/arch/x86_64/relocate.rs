//! The planner: finds `syscall` instructions and five or more bytes around each that can move into
//! a stub. Whatever it cannot prove safe is refused.
//!
//! Proof obligations for a window: it is code (the start of its function leads there: tables may
//! look like calls); nothing jumps into its inside; every moved instruction means the same
//! elsewhere; the flags behind the call are dead (the entry code changes them).

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, InstructionInfoFactory,
    OpAccess, OpKind, Register, RflagsBits,
};

use crate::rewrite::elf::{self, Function, Module};
use crate::rewrite::plan::{
    AFTER_MAX, BEFORE_MAX, Fixup, Hint, NO_FIXUP, PatchPlan, Refusal, Refused, Site, WINDOW_MAX,
};

/// Bytes of a `jmp rel32`.
pub const JUMP_LEN: usize = 5;
const UNKNOWN: i32 = -1;
const STATUS_FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Plans all sites of a module whose call number is `served` or not known before run time.
pub fn plan(module: &Module, served: fn(usize) -> bool) -> PatchPlan {
    let mut survey = Survey::new(module);
    let functions = module.functions();
    survey.divide(&functions);
    let decode = |&function: &Function| survey.body(function, survey.limit(function));
    let mut bodies: Vec<Body> = functions.iter().filter_map(decode).collect();
    bodies.iter_mut().for_each(|body| body.reach(&survey));
    let mut plan = PatchPlan::default();
    // Most objects make no calls of their own, but have bytes that look like one.
    if bodies.iter().any(Body::makes_calls) {
        survey.mark_all();
        for body in bodies {
            Planner::new(&survey, body).add_to(&mut plan, served);
        }
    }
    plan
}

/// Proves the sites of a kept plan from the text: all that is written to code comes from here. None
/// if any of them breaks a rule of the planner.
///
/// What only a survey of the whole text shows is taken on the word of the plan for all but libc and
/// the dynamic linker: that no other function jumps into a window, or keeps something in wide
/// registers while it calls. So the planner, knowing less here, might take a call more or another
/// window than the plan does.
pub fn prove(module: &Module, hints: &[Hint], served: fn(usize) -> bool) -> Option<PatchPlan> {
    let places = || hints.iter().map(|hint| hint.window as usize);
    places().is_sorted().then_some(())?;
    let mut survey = Survey::new(module);
    let functions = module.functions_near(places());
    survey.divide(&functions);
    let mut rest = hints;
    let mut named = Vec::new();
    for &function in &functions {
        let behind = rest.partition_point(|hint| (hint.window as usize) < function.1);
        let own = rest.split_off(..behind)?;
        if !own.is_empty() {
            named.push((function, survey.limit(function), own));
        }
    }
    rest.is_empty().then_some(())?;
    survey.mark_near(&functions);

    let mut plan = PatchPlan::default();
    for (function, limit, own) in named {
        // One at a time: all of them decoded would be megabytes that the process keeps.
        let planner = Planner::new(&survey, survey.body(function, limit)?);
        planner.prove(own, &mut plan, served)?;
    }
    Some(plan)
}

/// The highest bit of each byte that may be 0xe8, 0xe9 or 0x0f; it is set in others, too.
fn may_open_jumps(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    zeros((word & !ONES) ^ (ONES * 0xe8)) | zeros(word ^ (ONES * 0x0f))
}

/// What must be known of the whole text before a single window can be judged.
struct Survey<'m> {
    module: &'m Module,
    /// One bit per byte of text: something jumps here, or a function starts here.
    targets: Vec<u64>,
    /// Functions with a jump whose destinations are unknown.
    opaque: Vec<usize>,
    /// Where jump tables begin, ascending, as far as it is certain.
    tables: Vec<usize>,
    /// Where parts of the text begin: functions, and what lies between them.
    parts: Vec<usize>,
    /// Of each part: whether something may be kept in wide registers while it runs.
    wide: Vec<bool>,
}

impl<'m> Survey<'m> {
    fn new(module: &'m Module) -> Self {
        let words = module.text.1.div_ceil(64);
        Survey {
            module,
            targets: vec![0; words],
            opaque: Vec::new(),
            tables: Vec::new(),
            parts: Vec::new(),
            wide: Vec::new(),
        }
    }

    /// Marks the starts of these functions, and divides the text into parts.
    fn divide(&mut self, functions: &[Function]) {
        let (begin, len) = self.module.text;
        functions.iter().for_each(|function| self.mark(function.0));
        let edges = functions
            .iter()
            .flat_map(|function| [function.0, function.1]);
        self.parts = edges
            .chain([begin])
            .filter(|&at| at < begin + len)
            .collect();
        self.parts.sort_unstable();
        self.parts.dedup();
    }

    /// Whether something may be kept in wide registers anywhere in a function.
    fn is_wide_in(&self, (start, end): Function) -> bool {
        self.wide[self.part_at(start)..=self.part_at(end - 1)].contains(&true)
    }

    fn part_at(&self, vaddr: usize) -> usize {
        self.parts.partition_point(|&start| start <= vaddr) - 1
    }

    fn text_index(&self, vaddr: usize) -> Option<usize> {
        vaddr
            .checked_sub(self.module.text.0)
            .filter(|&i| i < self.module.text.1)
    }

    fn mark(&mut self, vaddr: usize) {
        if let Some(i) = self.text_index(vaddr) {
            self.targets[i / 64] |= 1 << (i % 64);
        }
    }

    fn is_target(&self, vaddr: usize) -> bool {
        self.text_index(vaddr)
            .is_none_or(|i| self.targets[i / 64] & (1 << (i % 64)) != 0)
    }

    fn decoder(&self, function: Function) -> Decoder<'m> {
        let code = self
            .module
            .bytes(function.0, function.1 - function.0)
            .unwrap_or(&[]);
        Decoder::with_ip(64, code, function.0 as u64, DecoderOptions::NONE)
    }

    /// How far a window may reach behind a function.
    fn limit(&self, function: Function) -> usize {
        let text_end = self.module.text.0 + self.module.text.1;
        let mut behind = function.1..text_end.min(function.1 + WINDOW_MAX);
        let end = behind.end;
        behind.find(|&at| self.is_target(at)).unwrap_or(end)
    }

    /// The instructions of a function with a call, and what follows up to its limit.
    fn body(&self, function: Function, until: usize) -> Option<Body> {
        let code = self.module.bytes(function.0, function.1 - function.0)?;
        elf::may_call(code).then_some(())?;
        let mut decoder = self.decoder((function.0, until));
        // Instructions of libc have four bytes or more on the average.
        let expected = (until - function.0) / 4 + 1;
        let mut code = Vec::with_capacity(expected);
        let mut displacements = Vec::with_capacity(expected);
        while decoder.can_decode() {
            let one = decoder.decode();
            displacements.push(decoder.get_constant_offsets(&one).displacement_offset());
            code.push(one);
        }
        let body = Body {
            function,
            reached: Vec::new(),
            code,
            displacements,
        };
        // Large libraries have thousands of functions with bytes that only look like a call.
        body.calls().next()?;
        Some(body)
    }

    /// Where each part begins and ends.
    fn ranges(&self) -> Vec<Function> {
        let end = self.module.text.0 + self.module.text.1;
        let ends = self.parts.iter().skip(1).copied().chain([end]);
        self.parts.iter().copied().zip(ends).collect()
    }

    /// Marks all places that something jumps to.
    fn mark_all(&mut self) {
        let ranges = self.ranges();
        let parts = ranges.into_iter().map(|part| self.visit(part)).collect();
        let parts = self.mark_from(parts);
        self.wide = parts.iter().map(|part| part.wide).collect();
        // What is wide in libc is written by hand, and keeps to what any function may rely on.
        if !self.module.essential {
            self.spread_wide(&parts);
        }
    }

    /// Marks the places that the known functions and what lies between neighbours jump to, and for
    /// libc those that anything might jump to directly.
    fn mark_near(&mut self, functions: &[Function]) {
        const GAP_MAX: usize = 4096;
        let ranges = self.ranges();
        self.wide = vec![false; ranges.len()];
        let mut parts = Vec::new();
        for (i, range) in ranges.into_iter().enumerate() {
            if functions.binary_search(&range).is_ok() || range.1 - range.0 <= GAP_MAX {
                let part = self.visit(range);
                self.wide[i] = part.wide;
                parts.push(part);
            }
        }
        self.mark_from(parts);
        if self.module.essential {
            self.mark_far();
        }
    }

    /// Marks what any bytes of the text would jump to or call, if they were code.
    fn mark_far(&mut self) {
        const BLOCK: usize = size_of::<u64>();
        let (begin, len) = self.module.text;
        let code = self.module.bytes(begin, len).unwrap_or(&[]);
        let (blocks, rest) = code.as_chunks::<BLOCK>();
        for (k, &block) in blocks.iter().enumerate() {
            let mut found = may_open_jumps(u64::from_le_bytes(block));
            while found != 0 {
                let i = k * BLOCK + found.trailing_zeros() as usize / 8;
                self.mark_jump(code, i);
                found &= found - 1;
            }
        }
        (code.len() - rest.len()..code.len()).for_each(|i| self.mark_jump(code, i));
    }

    /// Marks where a jump or call of 32 bits at byte `i` of the code leads to, if there is one.
    fn mark_jump(&mut self, code: &[u8], i: usize) {
        let displacement = match code[i..] {
            [0xe8 | 0xe9, ..] => i + 1,
            [0x0f, 0x80..=0x8f, ..] => i + 2,
            _ => return,
        };
        if let Some(&bytes) = code[displacement..].first_chunk::<4>() {
            let next = self.module.text.0 + displacement + bytes.len();
            self.mark(next.wrapping_add_signed(i32::from_le_bytes(bytes) as isize));
        }
    }

    /// Marks the places that these parts jump to by tables.
    fn mark_from(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        let own: Vec<Vec<usize>> = parts.iter().map(|part| part.own_tables(self)).collect();
        let mut tables = own.concat();
        tables.sort_unstable();
        self.tables = tables;
        for (part, own) in parts.iter_mut().zip(own) {
            if part.jumps_indirectly && own.is_empty() {
                self.opaque.push(part.range.0);
            }
            // A table may be named in one part of a function, and used in another that lies apart.
            let targets = part.tables.iter().flat_map(|&table| self.led_to(table));
            let targets: Vec<usize> = targets.collect();
            targets.iter().for_each(|&target| self.mark(target));
            if part.jumps_indirectly {
                part.leads_to.extend(targets);
            }
        }
        parts
    }

    /// What a function keeps in wide registers may be live in all that it calls and jumps to:
    /// compilers know what their own functions leave alone.
    fn spread_wide(&mut self, parts: &[Part]) {
        let mut open: Vec<usize> = (0..parts.len()).filter(|&i| self.wide[i]).collect();
        while let Some(i) = open.pop() {
            for &next in &parts[i].leads_to {
                let next = self.part_at(next);
                if !self.wide[next] {
                    self.wide[next] = true;
                    open.push(next);
                }
            }
        }
    }

    /// Marks the places that a part's own instructions name, and tells where others may be found.
    fn visit(&mut self, part: Function) -> Part {
        let mut wide = false;
        let mut leads_to = Vec::new();
        let mut jumps_indirectly = false;
        let mut tables = Vec::new();
        let mut popped = Register::None;
        let mut one = Instruction::default();
        let mut decoder = self.decoder(part);
        while decoder.can_decode() {
            decoder.decode_out(&mut one);
            wide |= is_wide(&one);
            match one.flow_control() {
                FlowControl::UnconditionalBranch
                | FlowControl::ConditionalBranch
                | FlowControl::Call => {
                    let target = one.near_branch_target() as usize;
                    self.mark(target);
                    if !(part.0..part.1).contains(&target) && self.text_index(target).is_some() {
                        leads_to.push(target);
                    }
                }
                FlowControl::IndirectBranch => {
                    jumps_indirectly |= !is_linkage_jump(&one) && !is_return(popped, &one);
                }
                _ => {}
            }
            popped = match one.code() {
                Code::Pop_r64 => one.op0_register(),
                _ => Register::None,
            };
            match table_of(&one) {
                Some(code) if self.text_index(code).is_some() => self.mark(code),
                table => tables.extend(table),
            }
        }
        Part {
            range: part,
            wide,
            leads_to,
            jumps_indirectly,
            tables,
        }
    }

    /// Where a jump table at `table` may lead to, if there is one. It ends where another one
    /// begins.
    fn led_to(&self, table: usize) -> Vec<usize> {
        let next = self.tables.partition_point(|&start| start <= table);
        let next = self.tables.get(next).map_or(usize::MAX, |&next| next);
        let entries = (table..next)
            .step_by(4)
            .map_while(|at| self.module.i32_at(at));
        let targets = entries.map(|offset| table.wrapping_add_signed(offset as isize));
        let inside = |target: &usize| self.text_index(*target).is_some();
        targets.take_while(inside).collect()
    }
}

/// A function, or what lies between two.
struct Part {
    range: Function,
    /// Whether it uses registers wider than those that the entry code keeps.
    wide: bool,
    /// Where it jumps to, or calls, outside of itself.
    leads_to: Vec<usize>,
    jumps_indirectly: bool,
    /// What it takes the address of, outside of the code.
    tables: Vec<usize>,
}

impl Part {
    /// Its jump tables, as far as it is certain: they begin with a place in it.
    fn own_tables(&self, survey: &Survey<'_>) -> Vec<usize> {
        let leads_here = |table: &&usize| {
            let first = survey.module.i32_at(**table);
            let first = first.map(|offset| table.wrapping_add_signed(offset as isize));
            first.is_some_and(|first| (self.range.0..self.range.1).contains(&first))
        };
        let tables = self.tables.iter().filter(|_| self.jumps_indirectly);
        tables.filter(leads_here).copied().collect()
    }
}

/// What an instruction takes the address of, relative to itself.
fn table_of(one: &Instruction) -> Option<usize> {
    let takes_address = one.code() == Code::Lea_r64_m && one.is_ip_rel_memory_operand();
    takes_address.then(|| one.ip_rel_memory_address() as usize)
}

/// A function, decoded from its start on.
struct Body {
    function: Function,
    code: Vec<Instruction>,
    displacements: Vec<usize>,
    /// Which instructions the start leads to. The others may be anything.
    reached: Vec<bool>,
}

impl Body {
    /// Follows the code from its start and from the places that its jump tables lead to.
    fn reach(&mut self, survey: &Survey<'_>) {
        self.reached = vec![false; self.code.len()];
        let mut open = vec![0];
        let tables = self.code.iter().filter_map(table_of);
        let by_tables = tables.flat_map(|table| survey.led_to(table));
        open.extend(by_tables.filter_map(|at| self.index_of(at as u64)));
        while let Some(k) = open.pop() {
            let inside = |one: &&Instruction| one.ip() < self.function.1 as u64;
            let Some(one) = self.code.get(k).filter(inside).filter(|_| !self.reached[k]) else {
                continue;
            };
            self.reached[k] = true;
            let branches = matches!(
                one.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            if branches && let Some(target) = self.index_of(one.near_branch_target()) {
                open.push(target);
            }
            let ends = matches!(
                one.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
                    | FlowControl::Exception
                    | FlowControl::Interrupt
            );
            if !ends && one.code() != Code::Hlt {
                open.push(k + 1);
            }
        }
    }

    fn calls(&self) -> impl Iterator<Item = usize> {
        let calls = self.code.iter().enumerate();
        calls.filter_map(|(i, one)| (one.code() == Code::Syscall).then_some(i))
    }

    fn holds(&self, vaddr: usize) -> bool {
        (self.function.0..self.function.1).contains(&vaddr)
    }

    fn makes_calls(&self) -> bool {
        self.calls().any(|i| self.reached[i])
    }

    fn index_of(&self, vaddr: u64) -> Option<usize> {
        self.code.binary_search_by_key(&vaddr, Instruction::ip).ok()
    }
}

/// A jump to what was popped just before is a return: that of `vfork` in a C library that is built
/// for shadow stacks.
fn is_return(popped: Register, jump: &Instruction) -> bool {
    popped != Register::None && jump.op0_kind() == OpKind::Register && jump.op0_register() == popped
}

/// A tail call through the global offset table leaves the function for good.
fn is_linkage_jump(jump: &Instruction) -> bool {
    jump.op0_kind() == OpKind::Memory && jump.is_ip_rel_memory_operand()
}

/// Plans the sites of one function.
struct Planner<'s, 'm> {
    survey: &'s Survey<'m>,
    opaque: bool,
    body: Body,
}

impl<'s, 'm> Planner<'s, 'm> {
    fn new(survey: &'s Survey<'m>, mut body: Body) -> Self {
        body.reach(survey);
        Planner {
            survey,
            opaque: survey.opaque.iter().any(|part| body.holds(*part)),
            body,
        }
    }

    fn add_to(&self, plan: &mut PatchPlan, served: fn(usize) -> bool) {
        let mut info = InstructionInfoFactory::new();
        for i in self.body.calls() {
            let number = self.number(i, &mut info);
            if usize::try_from(number).is_ok_and(|n| !served(n)) {
                continue;
            }
            let at = self.body.code[i].ip() as u32;
            match self.site(i, number) {
                Ok(site) if overlaps(plan.sites.last(), &site) => {
                    plan.refused.push(Refused {
                        at,
                        number,
                        why: Refusal::NoWindow,
                    });
                }
                Ok(site) => plan.sites.to_mut().push(site),
                Err(why) => plan.refused.push(Refused { at, number, why }),
            }
        }
    }

    /// The call number at the `syscall` `i`, if the code in front of it fixes it on every way.
    fn number(&self, i: usize, info: &mut InstructionInfoFactory) -> i32 {
        for k in (0..i).rev() {
            if self.survey.is_target(self.body.code[k + 1].ip() as usize) {
                return UNKNOWN;
            }
            let one = &self.body.code[k];
            if let Some(number) = loads_number(one) {
                return number;
            }
            if one.flow_control() != FlowControl::Next || writes_rax(one, info) {
                return UNKNOWN;
            }
        }
        UNKNOWN
    }

    /// Adds the sites that these hints name. None if one of them breaks a rule.
    fn prove(&self, hints: &[Hint], plan: &mut PatchPlan, served: fn(usize) -> bool) -> Option<()> {
        let mut info = InstructionInfoFactory::new();
        for hint in hints {
            let i = self.body.index_of(hint.syscall())?;
            (self.body.code[i].code() == Code::Syscall).then_some(())?;
            let number = self.number(i, &mut info);
            (hint.number == UNKNOWN || hint.number == number).then_some(())?;
            let is_served = usize::try_from(hint.number).is_ok_and(served);
            (hint.number == UNKNOWN || is_served).then_some(())?;
            let wide = hint.wide != 0;
            (wide || !self.is_wide()).then_some(())?;
            self.may_move(i).ok()?;
            let mut windows = self.windows(i, hint.number, wide);
            let site = windows.find(|site| Hint::of(site) == *hint)?;
            (!overlaps(plan.sites.last(), &site)).then_some(())?;
            plan.sites.to_mut().push(site);
        }
        Some(())
    }

    fn site(&self, i: usize, number: i32) -> Result<Site, Refusal> {
        self.may_move(i)?;
        let mut windows = self.windows(i, number, self.is_wide());
        windows.next().ok_or(Refusal::NoWindow)
    }

    /// Whether something may be kept in wide registers, as far as the survey knows.
    fn is_wide(&self) -> bool {
        self.survey.is_wide_in(self.body.function)
    }

    /// Whether the call `i` may be moved at all.
    fn may_move(&self, i: usize) -> Result<(), Refusal> {
        if !self.body.reached[i] {
            return Err(Refusal::Unreached);
        }
        if self.opaque {
            return Err(Refusal::UnknownJumps);
        }
        if !self.flags_dead(i + 1) {
            return Err(Refusal::FlagsLive);
        }
        Ok(())
    }

    /// The sites that the call `i` could have, the best first.
    fn windows(&self, i: usize, number: i32, wide: bool) -> impl Iterator<Item = Site> {
        let firsts = (i.saturating_sub(JUMP_LEN)..=i).rev();
        let sites = firsts.filter_map(move |first| self.window(first, i, number));
        sites.map(move |site| Site {
            wide: u8::from(wide),
            ..site
        })
    }

    /// The site whose window starts at instruction `first` and ends as early as possible.
    fn window(&self, first: usize, syscall: usize, number: i32) -> Option<Site> {
        let code = &self.body.code;
        let start = code[first].ip() as usize;
        let mut site = Site {
            window: start as u32,
            number,
            window_len: 0,
            syscall_at: (code[syscall].ip() as usize - start) as u8,
            before_len: 0,
            after_len: 0,
            wide: 0,
            padding: [0; 3],
            original: [0; WINDOW_MAX],
            before: [0; BEFORE_MAX],
            after: [0; AFTER_MAX],
            fixups: [NO_FIXUP; 3],
        };
        let mut ended = false;
        for (k, one) in code.iter().enumerate().skip(first) {
            let len = one.next_ip() as usize - start;
            if k > syscall && usize::from(site.window_len) >= JUMP_LEN {
                break;
            }
            if len > WINDOW_MAX || k > first && self.survey.is_target(one.ip() as usize) {
                return None;
            }
            site.window_len = len as u8;
            // What nothing leads to is code no longer.
            ended |= k > syscall && !self.body.reached[k];
            if k != syscall && !ended {
                self.move_one(k, k > syscall, &mut site)?;
            } else if ended && !is_padding(one) {
                return None;
            }
            ended |= k > syscall
                && one.flow_control() != FlowControl::Next
                && one.flow_control() != FlowControl::ConditionalBranch;
        }
        let len = usize::from(site.window_len);
        (len >= JUMP_LEN).then_some(())?;
        site.original[..len].copy_from_slice(self.survey.module.bytes(start, len)?);
        Some(site)
    }

    /// Appends instruction `k` to the moved code. None if it would not mean the same there.
    fn move_one(&self, k: usize, behind: bool, site: &mut Site) -> Option<()> {
        let one = &self.body.code[k];
        let raw = self.survey.module.bytes(one.ip() as usize, one.len())?;
        let (part, used, room): (u8, &mut u8, &mut [u8]) = if behind {
            (1, &mut site.after_len, &mut site.after)
        } else {
            (0, &mut site.before_len, &mut site.before)
        };
        let at = usize::from(*used);
        let (moved, displacement, target) = match one.flow_control() {
            FlowControl::Next if one.is_ip_rel_memory_operand() => {
                let target = one.ip_rel_memory_address();
                (raw.to_vec(), Some(self.body.displacements[k]), target)
            }
            FlowControl::Next if one.code() != Code::INVALID => (raw.to_vec(), None, 0),
            FlowControl::Return if behind => (raw.to_vec(), None, 0),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch if behind => {
                let long = long_branch(raw)?;
                let displacement = long.len() - 4;
                (long, Some(displacement), one.near_branch_target())
            }
            _ => return None,
        };
        room.get_mut(at..at + moved.len())?.copy_from_slice(&moved);
        *used += moved.len() as u8;
        if let Some(displacement) = displacement {
            let free = site.fixups.iter_mut().find(|f| **f == NO_FIXUP)?;
            let (at, end) = ((at + displacement) as u8, *used);
            *free = Fixup {
                at,
                end,
                part,
                padding: 0,
                target: u32::try_from(target).ok()?,
            };
        }
        Some(())
    }

    /// Whether the status flags are written before they are read from instruction `from` on.
    fn flags_dead(&self, from: usize) -> bool {
        const STEPS: usize = 64;
        let mut open = vec![(from, STATUS_FLAGS)];
        for _ in 0..STEPS {
            let Some((k, alive)) = open.pop() else {
                return true;
            };
            let Some(one) = self.body.code.get(k) else {
                return false;
            };
            if !self.body.reached[k] {
                continue;
            }
            // Behind a call of the kernel they are as before. It copies them to r11, which is free.
            let (read, modified) = match one.code() {
                Code::INVALID => return false,
                Code::Syscall => (0, 0),
                _ => (one.rflags_read(), one.rflags_modified()),
            };
            if read & alive != 0 {
                return false;
            }
            let alive = alive & !modified;
            if alive != 0 {
                let Some(behind) = self.behind(k) else {
                    return false;
                };
                open.extend(behind.map(|next| (next, alive)));
            }
        }
        false
    }

    /// The instructions of the function that may follow one. No such ones behind calls, returns and
    /// traps: no calling convention passes status flags. `None`: a condition leads out of the
    /// function, as into a part of it that is seldom used, and lies elsewhere.
    fn behind(&self, k: usize) -> Option<impl Iterator<Item = usize>> {
        let one = &self.body.code[k];
        let target = || self.body.index_of(one.near_branch_target());
        let (next, target) = match one.flow_control() {
            _ if one.code() == Code::Syscall => (true, None),
            FlowControl::Next => (true, None),
            FlowControl::UnconditionalBranch => (false, target()),
            FlowControl::ConditionalBranch => (true, Some(target()?)),
            _ => (false, None),
        };
        Some(next.then_some(k + 1).into_iter().chain(target))
    }
}

fn overlaps(last: Option<&Site>, site: &Site) -> bool {
    last.is_some_and(|last| last.window + u32::from(last.window_len) > site.window)
}

/// Instructions that may keep something in the upper halves of vector registers, or in masks.
/// Others that are encoded so work on general registers.
fn is_wide(one: &Instruction) -> bool {
    let kind = one.code().encoding();
    let is_wide = |register: Register| register != Register::None && !register.is_gpr();
    matches!(kind, EncodingKind::VEX | EncodingKind::EVEX)
        && (0..one.op_count()).any(|i| is_wide(one.op_register(i)))
}

fn is_padding(one: &Instruction) -> bool {
    one.is_nop_like() || matches!(one.code(), Code::Int3 | Code::Hlt)
}

trait NopLike {
    fn is_nop_like(&self) -> bool;
}

impl NopLike for Instruction {
    fn is_nop_like(&self) -> bool {
        let name = self.mnemonic();
        let exchange = name == iced_x86::Mnemonic::Xchg
            && self.op0_register() == self.op1_register()
            && self.op1_kind() == OpKind::Register;
        name == iced_x86::Mnemonic::Nop || exchange
    }
}

/// The number that `mov eax, imm` or `xor eax, eax` puts into rax.
fn loads_number(one: &Instruction) -> Option<i32> {
    if !matches!(one.op0_register(), Register::EAX | Register::RAX) {
        return None;
    }
    match one.code() {
        Code::Mov_r32_imm32 => i32::try_from(one.immediate32()).ok(),
        Code::Mov_rm64_imm32 => i32::try_from(one.immediate32to64())
            .ok()
            .filter(|&n| n >= 0),
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 => {
            (one.op1_kind() == OpKind::Register && one.op1_register() == Register::EAX).then_some(0)
        }
        _ => None,
    }
}

fn writes_rax(one: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    info.info(one).used_registers().iter().any(|used| {
        used.register().full_register() == Register::RAX
            && !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
    })
}

/// A direct branch in its form with a 32-bit displacement (left zero).
fn long_branch(raw: &[u8]) -> Option<Vec<u8>> {
    match *raw {
        [0xeb | 0xe9, ..] => Some(vec![0xe9, 0, 0, 0, 0]),
        [0x0f, code @ 0x80..=0x8f, ..] => Some(vec![0x0f, code, 0, 0, 0, 0]),
        [code @ 0x70..=0x7f, ..] => Some(vec![0x0f, code + 0x10, 0, 0, 0, 0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{plan, prove};
    use crate::rewrite::elf::Module;
    use crate::rewrite::plan::{Hint, PatchPlan, Refusal};

    /// `mov eax, 39`: getpid.
    const LOAD: [u8; 5] = [0xb8, 39, 0, 0, 0];
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const RET: u8 = 0xc3;
    const HLT: u8 = 0xf4;

    fn planned(parts: &[&[u8]]) -> PatchPlan {
        plan(&Module::of_code(&parts.concat()), |_| true)
    }

    #[test]
    fn neighbours_behind_move_first() {
        // cmp rax, -4095; ret
        let after = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
        let plan = planned(&[&LOAD, &SYSCALL, &after, &[RET]]);
        let site = plan.sites[0];
        assert_eq!((site.window, site.window_len, site.number), (5, 8, 39));
        assert_eq!(site.after[..6], after);
        assert_eq!(site.before_len, 0);
    }

    #[test]
    fn neighbours_in_front_move_when_a_jump_leads_behind() {
        // syscall; (target:) ret; jmp target
        let plan = planned(&[&LOAD, &SYSCALL, &[RET, 0xeb, 0xfd]]);
        let site = plan.sites[0];
        assert_eq!((site.window, site.window_len, site.syscall_at), (0, 7, 5));
        assert_eq!(site.before[..5], LOAD);
    }

    #[test]
    fn a_jump_to_the_call_itself_forbids_moving_what_is_in_front() {
        // target: syscall; ret; jmp target -- the return is followed by code, so nothing fits.
        let plan = planned(&[&LOAD, &SYSCALL, &[RET, 0xeb, 0xfb]]);
        assert!(plan.sites.is_empty());
        assert_eq!(plan.refused[0].why, Refusal::NoWindow);
        assert_eq!(
            plan.refused[0].number, -1,
            "the number is not known on every way"
        );
    }

    #[test]
    fn flags_that_are_read_behind_the_call_forbid_it() {
        // cmp ebx, ebx; syscall; je +0; nop x 8; ret
        let plan = planned(&[
            &LOAD,
            &[0x39, 0xdb],
            &SYSCALL,
            &[0x74, 0x00],
            &[0x90; 8],
            &[RET],
        ]);
        assert!(plan.sites.is_empty());
        assert_eq!(plan.refused[0].why, Refusal::FlagsLive);
    }

    #[test]
    fn padding_behind_a_return_may_be_overwritten() {
        let plan = planned(&[&LOAD, &SYSCALL, &[RET], &[0xcc; 8]]);
        assert_eq!((plan.sites[0].window, plan.sites[0].window_len), (5, 5));
    }

    #[test]
    fn an_unknown_indirect_jump_forbids_the_function() {
        // jmp rbx behind the return
        let plan = planned(&[&LOAD, &SYSCALL, &[RET], &[0x90; 4], &[0xff, 0xe3]]);
        assert_eq!(plan.refused[0].why, Refusal::UnknownJumps);
    }

    #[test]
    fn a_jump_to_what_was_just_popped_is_a_return() {
        // pop rdi; jmp rdi
        let plan = planned(&[&LOAD, &SYSCALL, &[0x90; 8], &[0x5f, 0xff, 0xe7]]);
        assert_eq!((plan.sites.len(), plan.refused.len()), (1, 0));
        // pop rsi; jmp rdi
        let plan = planned(&[&LOAD, &SYSCALL, &[0x90; 8], &[0x5e, 0xff, 0xe7]]);
        assert_eq!(plan.refused[0].why, Refusal::UnknownJumps);
    }

    #[test]
    fn what_nothing_leads_to_is_no_call() {
        // cmp rax, -4095; ret
        let after = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, RET];
        let data = [&LOAD[..], &SYSCALL, &after].concat();
        assert_eq!(planned(&[&[RET], &data]), PatchPlan::default());
        let plan = planned(&[&LOAD, &SYSCALL, &after, &data]);
        assert_eq!(plan.sites.len(), 1);
        assert_eq!(plan.refused[0].why, Refusal::Unreached);
        // je over a return leads there: cmp ebx, ebx; je +1
        let plan = planned(&[&[0x39, 0xdb, 0x74, 0x01], &[RET], &data]);
        assert_eq!((plan.sites.len(), plan.refused.len()), (1, 0));
    }

    #[test]
    fn a_jump_table_ends_where_another_begins() {
        // Twice: lea rcx, [rip + table]; jmp rcx. Then: syscall; test eax, eax; xor edx, edx; nop;
        // nop; ret
        const JUMPS: i32 = 18;
        const CALL: i32 = JUMPS + 5;
        let call = [
            &LOAD[..],
            &SYSCALL,
            &[0x85, 0xc0, 0x31, 0xd2, 0x90, 0x90, RET],
        ]
        .concat();
        let tables = JUMPS + call.len() as i32;
        let lea = |table: i32, next: i32| {
            let distance = (table - next).to_le_bytes();
            [&[0x48, 0x8d, 0x0d], &distance[..], &[0xff, 0xe1]].concat()
        };
        let code = [lea(tables, 7), lea(tables + 4, 16), call].concat();
        // The first leads to the code behind the jumps, the second to the return; read as one, into
        // the window.
        let data = [JUMPS - tables, CALL + 8 - (tables + 4)].map(i32::to_le_bytes);
        let module = Module::of_code_and_data(&code, data.as_flattened());
        let plan = plan(&module, |_| true);
        assert_eq!((plan.sites.len(), plan.refused.len()), (1, 0));
        assert_eq!(plan.sites[0].window, CALL as u32);
    }

    #[test]
    fn addresses_relative_to_the_instruction_are_fixed_up() {
        // syscall; mov rcx, [rip + 0x10]; test rax, rax; ret
        let load = [0x48, 0x8b, 0x0d, 0x10, 0, 0, 0];
        let plan = planned(&[&LOAD, &SYSCALL, &load, &[0x48, 0x85, 0xc0, RET]]);
        let fixup = plan.sites[0].fixups[0];
        assert_eq!((fixup.at, fixup.end, fixup.part), (3, 7, 1));
        assert_eq!(fixup.target, 5 + 2 + 7 + 0x10);
    }

    #[test]
    fn short_branches_become_long() {
        // syscall; test rax, rax; js +1; ret; nop; ret
        let plan = planned(&[
            &LOAD,
            &SYSCALL,
            &[0x48, 0x85, 0xc0, 0x78, 0x01, RET, 0x90, RET],
        ]);
        assert_eq!(
            plan.sites[0].window_len, 5,
            "the window ends in front of the branch"
        );
        // syscall; cltd; js +1 ... flags are read, so the branch must follow a write
        let plan = planned(&[&LOAD, &SYSCALL, &[0x85, 0xc0, 0x78, 0x01, RET, 0x90, RET]]);
        let site = plan.sites[0];
        assert_eq!(site.after[..8], [0x85, 0xc0, 0x0f, 0x88, 0, 0, 0, 0]);
        assert_eq!(site.fixups[0].target, 5 + 2 + 2 + 2 + 1);
    }

    #[test]
    fn flags_may_be_alive_until_both_ways_of_a_branch_write_them() {
        // lock dec qword [rbx], which leaves the carry; je +1; nop; and behind it a write or a read
        let branch = [0xf0, 0x48, 0xff, 0x0b, 0x74, 0x01, 0x90];
        let (write, read) = ([0x85, 0xc0, RET], [0x0f, 0x92, 0xc0, RET]);
        let planned = |behind: &[u8]| planned(&[&LOAD, &SYSCALL, &branch, behind, &[0x90; 4]]);
        assert_eq!(planned(&write).sites.len(), 1);
        assert_eq!(planned(&read).refused[0].why, Refusal::FlagsLive);
    }

    #[test]
    fn flags_may_be_alive_where_a_condition_leads_out_of_the_function() {
        // lock dec qword [rbx]; je far away; test eax, eax; ret
        let behind = [0xf0, 0x48, 0xff, 0x0b, 0x74, 0x70, 0x85, 0xc0, RET];
        let plan = planned(&[&LOAD, &SYSCALL, &behind, &[0x90; 4]]);
        assert_eq!(plan.refused[0].why, Refusal::FlagsLive);
    }

    #[test]
    fn another_call_neither_reads_nor_writes_flags() {
        let (write, read) = ([0x85, 0xc0, RET, 0x90], [0x0f, 0x92, 0xc0, RET]);
        let planned = |behind: &[u8]| {
            let plan = planned(&[&LOAD, &SYSCALL, &LOAD, &SYSCALL, behind, &[0x90; 4]]);
            (plan.sites.len(), plan.refused.len())
        };
        assert_eq!((planned(&write), planned(&read)), ((2, 0), (0, 2)));
    }

    #[test]
    fn who_uses_wide_registers_is_known() {
        // vmovups ymm0, [rsp]; andn eax, eax, eax
        let load = [0xc5, 0xfc, 0x10, 0x04, 0x24];
        let narrow = [0xc4, 0xe2, 0x78, 0xf2, 0xc0];
        let behind = [RET, 0x90, 0x90, 0x90, 0x90];
        let wide = |first: &[u8]| planned(&[first, &LOAD, &SYSCALL, &behind]).sites[0].wide;
        assert_eq!((wide(&load), wide(&narrow)), (1, 0));
    }

    #[test]
    fn a_kept_plan_may_know_of_more_wide_registers_and_not_of_less() {
        let load = [0xc5, 0xfc, 0x10, 0x04, 0x24];
        for (first, known) in [(&load, [false, true]), (&[0x90; 5], [true, true])] {
            let code = [first, &LOAD[..], &SYSCALL, &[RET], &[0x90; 4]].concat();
            let module = Module::of_code(&code);
            let site = plan(&module, |_| true).sites[0];
            for (wide, proven) in (0..).zip(known) {
                let hint = Hint {
                    wide,
                    ..Hint::of(&site)
                };
                let sites = prove(&module, &[hint], |_| true).map(|plan| plan.sites[0].wide);
                assert_eq!(sites, proven.then_some(wide));
            }
        }
    }

    #[test]
    fn what_a_wide_function_calls_keeps_its_registers() {
        // vmovups ymm0, [rsp]; call the next function; ret
        let caller = [0xc5, 0xfc, 0x10, 0x04, 0x24, 0xe8, 1, 0, 0, 0, RET];
        let callee = [&LOAD[..], &SYSCALL, &[RET], &[0x90; 4]].concat();
        let ends = [caller.len(), caller.len() + callee.len()];
        let functions = [(0, ends[0]), (ends[0], ends[1])];
        let planned = |caller: &[u8]| {
            let code = [caller, &callee].concat();
            plan(&Module::of_functions(&code, &functions), |_| true)
        };
        assert_eq!(planned(&caller).sites[0].wide, 1);
        let narrow = [&[0x90; 5], &caller[5..]].concat();
        assert_eq!(planned(&narrow).sites[0].wide, 0);
    }

    #[test]
    fn a_call_that_does_not_return_has_padding_behind_it_or_data() {
        let call = [&LOAD[..], &SYSCALL].concat();
        let planned = |behind: &[u8]| {
            let code = [&call, behind].concat();
            let functions = [(0, call.len() + usize::from(behind[0] == HLT))];
            plan(&Module::of_functions(&code, &functions), |_| true)
        };
        // Backwards, what fits is moved; nothing behind is.
        for data in [&[0; 16][..], &[HLT, 0, 0, 0, 0, 0, 0, 0]] {
            let plan = planned(data);
            let end = |site: &crate::rewrite::plan::Site| {
                site.window as usize + usize::from(site.window_len)
            };
            assert!(
                plan.sites.iter().all(|site| end(site) <= call.len()),
                "{plan:?}"
            );
        }
        assert_eq!(planned(&[0x90; 16]).sites.len(), 1);
    }

    #[test]
    fn what_lies_behind_a_function_is_not_its_code() {
        // call abort, which does not return; then a table
        let call = [0xe8, 0x40, 0, 0, 0];
        let table = [&LOAD[..], &SYSCALL, &[RET], &[0x90; 4]].concat();
        let code = [&call[..], &table].concat();
        let plan_of = |end| plan(&Module::of_functions(&code, &[(0, end)]), |_| true);
        assert_eq!(plan_of(call.len()), PatchPlan::default());
        assert_eq!(plan_of(code.len()).sites.len(), 1);
        assert_eq!(
            plan(&Module::of_functions(&code, &[]), |_| true),
            PatchPlan::default()
        );
    }

    #[test]
    fn a_jump_from_afar_into_a_window_of_libc_is_seen() {
        // cmp rax, -4095; ret
        let call = [
            &LOAD[..],
            &SYSCALL,
            &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, RET],
        ]
        .concat();
        let behind = LOAD.len() + SYSCALL.len();
        for opcode in [&[0xe8][..], &[0xe9], &[0x0f, 0x84]] {
            for far in 8192..8200 {
                let mut code = call.clone();
                code.resize(far, 0x90);
                let plain = Module::of_functions(&code, &[(0, call.len())]);
                let hints: Vec<Hint> = plan(&plain, |_| true).sites.iter().map(Hint::of).collect();
                let next = far + opcode.len() + 4;
                code.extend(opcode);
                code.extend((behind as i32 - next as i32).to_le_bytes());
                let mut module = Module::of_functions(&code, &[(0, call.len())]);
                assert!(prove(&module, &hints, |_| true).is_some());
                module.essential = true;
                assert!(
                    prove(&module, &hints, |_| true).is_none(),
                    "{opcode:x?} at {far}"
                );
            }
        }
    }

    #[test]
    fn a_plan_is_proven_although_it_knew_more() {
        // cmp rax, -4095; ret; then, far away, a jump behind the call
        let compare = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
        let call = [&LOAD[..], &SYSCALL, &compare, &[RET]].concat();
        let (behind, far) = (LOAD.len() + SYSCALL.len(), 8192);
        let mut code = call.clone();
        code.resize(far, 0x90);
        code.push(0xe9);
        code.extend((behind as i32 - (far as i32 + 5)).to_le_bytes());
        let module = Module::of_functions(&code, &[(0, call.len())]);
        let made = plan(&module, |_| true);
        let alone = plan(&Module::of_functions(&call, &[(0, call.len())]), |_| true);
        assert_ne!(made.sites[0].window, alone.sites[0].window);
        let hints = made.sites.iter().map(Hint::of).collect::<Vec<_>>();
        assert_eq!(prove(&module, &hints, |_| true), Some(made));
        assert_eq!(prove(&module, &hints, |_| false), None, "it is not served");
    }

    #[test]
    fn calls_that_are_not_served_are_left_alone() {
        let code = [&LOAD[..], &SYSCALL, &[RET], &[0xcc; 8]].concat();
        let plan = plan(&Module::of_code(&code), |number| number != 39);
        assert_eq!(plan, PatchPlan::default());
    }
}
