use super::{archive::Archive, archive::Fields, *};
use crate::fuzzing;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        fuzzing::image_layer(&bytes);
        fuzzing::image_index(&bytes);
        fuzzing::image_document(&bytes);
    }

    #[test]
    fn no_changed_byte_of_an_archive_makes_a_reader_panic(at in 0_usize..4096, value: u8, seals: bool) {
        let layer = Archive::new()
            .pax("GNU.sparse.map", b"0,1")
            .file("a", "x")
            .long(b'L', "b")
            .with(Fields { link: b"a", ..Fields::new(b'1', "b") }, b"")
            .file("d/.wh.x", "")
            .end();
        let mut bytes = layer.bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = value;
        if seals && let Some(block) = bytes[at / 512 * 512..].first_chunk_mut::<512>() {
            archive::seal(block);
        }
        fuzzing::image_layer(&bytes);
    }

    /// The tree does not depend on how the bytes are cut into pieces.
    #[test]
    fn pieces_do_not_matter(names in prop::collection::vec("(\\.wh\\.)?[ab](/(\\.wh\\.)?[ab]){0,2}", 1..12), piece in 1_usize..2000) {
        let mut lower = Archive::new();
        let mut upper = Archive::new();
        for (number, name) in names.iter().enumerate() {
            let layer = if number % 2 == 0 { &mut lower } else { &mut upper };
            *layer = match number % 3 {
                0 => std::mem::take(layer).directory(name),
                _ => std::mem::take(layer).file(name, name),
            };
        }
        let layers = [lower.end(), upper.end()];
        let whole = tree_in_pieces(&layers, 1 << 20, ImageLimits::default());
        let cut = tree_in_pieces(&layers, piece, ImageLimits::default());
        prop_assert_eq!(whole.is_ok(), cut.is_ok());
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            prop_assert_eq!(entries(&whole), entries(&cut));
        }
    }
}
