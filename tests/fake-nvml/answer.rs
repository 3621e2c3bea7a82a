//! The common code of all C functions: the checks at the start of a call, and writes through pointers.
//!
//! What must never happen here: a panic that reaches C, a write through a null pointer.

#![expect(unsafe_code, reason = "a C interface is made of raw pointers")]

use crate::code::Code;
use crate::state::Subject;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call.
pub(crate) type Answer = Result<(), Code>;

/// Declares exported functions: `fn name(arguments) of subject |view| body`.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) of $subject:expr; |$view:ident| $body:block)*) => {$(
        /// # Safety
        /// As nvml.h demands: pointers are null or point to values of their types.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            crate::answer::answer(|| {
                // SAFETY: the caller guarantees valid pointers, see above; the called functions refuse null.
                unsafe {
                    let $view = crate::state::enter(stringify!($name), &$subject)?;
                    $body
                }
            })
        }
    )*};
}

/// Runs the body of a call; a panic becomes an unknown error.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Writes one value.
///
/// # Safety
/// `to` is null or writable.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller guarantees the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a C string.
///
/// # Safety
/// `to` is null or has room for `length` bytes.
pub(crate) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its final 0 fit, as checked.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list by NVML's convention: `count` is the capacity on entry and the number of entries on return.
///
/// # Safety
/// `count` is null or points to a number, `to` is null or has room for that number of entries.
pub(crate) unsafe fn put_list<T: Copy>(count: *mut c_uint, to: *mut T, list: &[T]) -> Answer {
    if count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let length = c_uint::try_from(list.len()).map_err(|_| Code::UNKNOWN)?;
    // SAFETY: not null, and the caller guarantees the rest.
    unsafe {
        let capacity = count.replace(length);
        if capacity < length || (to.is_null() && length > 0) {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        if length > 0 {
            std::ptr::copy_nonoverlapping(list.as_ptr(), to, list.len());
        }
    }
    Ok(())
}

/// Reads a C string.
///
/// # Safety
/// `from` is null or a C string.
pub(crate) unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller guarantees the rest.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// Text in a fixed field of a structure; text that does not fit is cut.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    field
}

/// `NVML_STRUCT_VERSION` of a structure.
pub(crate) fn version_of<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

/// The GPU or MIG instance of a handle.
pub(crate) fn device(handle: nvmlDevice_t) -> Subject {
    Subject::Handle(handle as usize)
}

pub(crate) use calls;
