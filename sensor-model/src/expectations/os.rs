//! The operating system, as far as a running host shows it.
//!
//! In: a rendered config. Out: the expectations of the kernel arguments and of the image, if they are declared.

use crate::{
    expectation::{Expectation, Expected, KernelArgumentsExpectation, OsImageExpectation, Thing},
    merge::Rendered,
    os::arguments::words,
};

pub(super) fn expectations(rendered: &Rendered, found: &mut Vec<Expectation>) {
    if let Some(last) = rendered.kernel_arguments.last() {
        let arguments = words(rendered.kernel_arguments.iter().map(|argument| argument.value.as_str()));
        found.push(Expectation {
            thing: Thing::KernelArguments,
            expected: Expected::KernelArguments(KernelArgumentsExpectation {
                arguments,
                waiting: Vec::new(),
            }),
            ssh_keys: false,
            label: None,
            source: last.source.clone().into(),
        });
    }
    if let Some(image) = rendered.os_image_url.as_ref().filter(|image| !image.value.is_empty()) {
        found.push(Expectation {
            thing: Thing::OsImage,
            expected: Expected::OsImage(OsImageExpectation::of(image.value.clone())),
            ssh_keys: false,
            label: None,
            source: image.source.clone().into(),
        });
    }
}
