//! Memory from the operating system, and advice on it, to the system and to the processor. Where there is none to give,
//! nothing happens.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use fresh::Fresh;

/// The size of a huge page on the machines that most servers are.
pub(super) const HUGE: usize = 2 << 20;

const SMALL: usize = 4096;
const WORDS_A_PAGE: usize = SMALL / size_of::<u64>();

#[cfg(target_os = "linux")]
mod fresh {
    use std::alloc::Layout;
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU64;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    /// Words that are zero, fresh from the system: only what is written to takes memory, page by page. An allocator may hand out
    /// what others have used before, and would have to clear all of it first, while a check waits.
    pub(in super::super) struct Fresh {
        start: NonNull<AtomicU64>,
        words: usize,
    }

    impl Fresh {
        pub(in super::super) fn new(words: usize) -> Fresh {
            let Ok(layout) = Layout::array::<AtomicU64>(words) else { panic!("more words than there are addresses") };
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the system chooses where it lies, so nothing that is there already is replaced.
            let start =
                unsafe { mmap_anonymous(std::ptr::null_mut(), layout.size().max(1), access, MapFlags::PRIVATE) };
            match start.ok().and_then(|start| NonNull::new(start.cast())) {
                Some(start) => Fresh { start, words },
                None => std::alloc::handle_alloc_error(layout),
            }
        }
    }

    impl Deref for Fresh {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: so many words were mapped there, at the beginning of a page, and stay until this is dropped; they began
            // as zero, and all bits make an atomic number.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
        }
    }

    impl Drop for Fresh {
        fn drop(&mut self) {
            let bytes = (self.words * size_of::<AtomicU64>()).max(1);
            // SAFETY: this is what was mapped, and nobody borrows it any more.
            let _refused = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        }
    }

    // SAFETY: it owns its memory, and shares only atomics.
    unsafe impl Send for Fresh {}
    // SAFETY: as above.
    unsafe impl Sync for Fresh {}
}

#[cfg(not(target_os = "linux"))]
mod fresh {
    use std::ops::Deref;
    use std::sync::atomic::AtomicU64;

    /// Words that are zero.
    pub(in super::super) struct Fresh(Box<[AtomicU64]>);

    impl Fresh {
        pub(in super::super) fn new(words: usize) -> Fresh {
            Fresh(bytemuck::zeroed_slice_box(words))
        }
    }

    impl Deref for Fresh {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

/// Asks for huge pages under `words`, as far as they fill whole ones.
pub(super) fn make_huge(words: &[AtomicU64]) {
    advise(words, HUGE, Advice::Huge);
}

/// Hands back the memory of `words`, all of which are zero, and nobody may write to them meanwhile. They stay zero.
pub(super) fn give_back(words: &[AtomicU64]) {
    advise(words, SMALL, Advice::Unneeded);
}

/// Has the system provide every page under `words` now.
pub(super) fn touch(words: &[AtomicU64]) {
    for page in words.chunks(WORDS_A_PAGE) {
        // Writes what is there, whatever others write meanwhile; a mere reading would not be given a page of its own.
        let word = page[0].load(Ordering::Relaxed);
        let _changed_meanwhile = page[0].compare_exchange(word, word, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Has the processor fetch the cache line of a word, to be written to soon, and does not wait for it.
#[inline]
pub(super) fn fetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetching changes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(word.as_ptr().cast_const().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

#[derive(Clone, Copy)]
enum Advice {
    Huge,
    Unneeded,
}

#[cfg(target_os = "linux")]
fn advise(words: &[AtomicU64], page: usize, advice: Advice) {
    let before = words.as_ptr().align_offset(page);
    let Some(words) = words.get(before..) else { return };
    let bytes = size_of_val(words) / page * page;
    if bytes == 0 {
        return;
    }
    let advice = match advice {
        Advice::Huge => rustix::mm::Advice::LinuxHugepage,
        Advice::Unneeded => rustix::mm::Advice::LinuxDontNeed,
    };
    // SAFETY: the range lies within `words`. Huge pages change no content. Pages that are not needed read as zero
    // afterwards, as these did before; atomics may change under a shared reference.
    let _refused = unsafe { rustix::mm::madvise(words.as_ptr().cast_mut().cast(), bytes, advice) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_words: &[AtomicU64], _page: usize, _advice: Advice) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_words_are_zero_and_can_be_written_to() {
        for words in [0, 1, 700, HUGE] {
            let fresh = Fresh::new(words);
            assert_eq!(fresh.len(), words);
            assert!(fresh.iter().all(|word| word.swap(7, Ordering::Relaxed) == 0));
            assert!(fresh.iter().all(|word| word.load(Ordering::Relaxed) == 7));
        }
    }

    #[test]
    fn advice_leaves_memory_as_it_was() {
        let words: Vec<_> = (0..3 * HUGE / 8).map(|number| AtomicU64::new(number as u64)).collect();
        make_huge(&words);
        touch(&words);
        assert!(words.iter().enumerate().all(|(number, word)| word.load(Ordering::Relaxed) == number as u64));
    }

    #[test]
    fn memory_that_was_given_back_is_zero_and_can_be_used_again() {
        let words: Vec<_> = (0..HUGE / 8).map(|_| AtomicU64::new(0)).collect();
        give_back(&words);
        touch(&words);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[1000].store(7, Ordering::Relaxed);
        assert_eq!(words[1000].load(Ordering::Relaxed), 7);
    }
}
