use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored, digest},
    world::{World, two_layers},
};
use std::fs;

/// Indexes one image of these layers, and gives the error. No index may be left.
fn refused(layers: &[Layer]) -> String {
    let world = World::new();
    LayoutMaker::one(&world.at("layout"), layers);
    refused_in(&world)
}

fn refused_in(world: &World) -> String {
    let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
    assert_eq!(result.code, 2, "{result:?}");
    let left = fs::read_dir(world.at("state/images")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left");
    result.err
}

#[test]
fn a_blob_with_another_digest_or_size_is_refused_by_its_layer() {
    for stored in [Stored::Plain, Stored::Gzip, Stored::Zstd] {
        let layers = [
            Layer::new(&Archive::new().file("a", "x").end(), Stored::Plain, "ADD"),
            Layer::new(&Archive::new().file("b", "content").end(), stored, "ADD"),
        ];
        let world = World::new();
        LayoutMaker::one(&world.at("layout"), &layers);
        let name = digest(&layers[1].bytes);
        let path = world.at("layout/blobs/sha256").join(&name[7..]);
        let mut bytes = layers[1].bytes.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = refused_in(&world);
        assert!(error.contains(&format!("layer 2 of 2 ({name}): its content has the digest")), "{error}");
        fs::write(&path, &bytes[1..]).unwrap();
        let error = refused_in(&world);
        assert!(error.contains("layer 2 of 2") && error.contains("and its descriptor says"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(refused_in(&world).contains("No such file"), "{error}");
    }
}

#[test]
fn a_layer_that_is_not_that_of_the_config_is_refused() {
    for stored in [Stored::Plain, Stored::Gzip, Stored::Zstd] {
        let mut layer = Layer::new(&Archive::new().file("a", "x").end(), stored, "ADD");
        layer.diff_id = format!("sha256:{}", "0".repeat(64));
        let error = refused(&[layer]);
        assert!(
            error.contains("layer 1 of 1") && error.contains("the image's config says sha256:0000"),
            "{error}"
        );
    }
}

#[test]
fn a_layer_that_is_cut_off_or_no_archive_is_refused_by_its_number() {
    let archive = Archive::new().file("a", &"content".repeat(1000)).end();
    for stored in [Stored::Plain, Stored::Gzip, Stored::Zstd] {
        let error = refused(&[Layer::new(&archive[..3000], stored, "ADD")]);
        assert!(error.contains("layer 1 of 1") && error.contains("the archive is cut off"), "{error}");
        let mut cut = Layer::new(&archive, stored, "ADD");
        cut.bytes.truncate(cut.bytes.len() / 2);
        let error = refused(&[cut]);
        assert!(error.contains("cut off") || error.contains("cannot be decompressed"), "{error}");
        let error = refused(&[Layer::new(&[b'x'; 2048], stored, "ADD")]);
        assert!(error.contains("the tar header before byte 512 is not valid"), "{error}");
    }
    let mut wrong = Layer::new(&archive, Stored::Plain, "ADD");
    wrong.media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    assert!(refused(&[wrong]).contains("cannot be decompressed"));
}

#[test]
fn a_decompression_bomb_is_refused() {
    // Two GiB of zeros, in a few kilobytes.
    let mut bytes = Vec::new();
    let piece = vec![0; 64 << 20];
    let mut header = Archive::new().file("zeros", "").end();
    header.truncate(512);
    header[124..136].copy_from_slice(format!("{:011o}\0", 2_u64 << 30).as_bytes());
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    {
        use std::io::Write as _;
        let mut gzip = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::fast());
        gzip.write_all(&header).unwrap();
        for _ in 0..32 {
            gzip.write_all(&piece).unwrap();
        }
        gzip.finish().unwrap();
    }
    let mut layer = Layer::new(b"", Stored::Gzip, "ADD");
    layer.bytes = bytes;
    let error = refused(&[layer]);
    assert!(error.contains("layer 1 of 1") && error.contains("decompression bomb"), "{error}");
}

/// A layer with a sparse file that has two bytes of data and this size.
fn sparse(size: u64, stored: Stored) -> Layer {
    let archive = Archive::new()
        .pax("GNU.sparse.map", b"0,2")
        .pax("GNU.sparse.size", size.to_string().as_bytes())
        .file("var/log/lastlog", "xy");
    Layer::new(&archive.end(), stored, "RUN useradd")
}

#[test]
fn sparse_files_that_are_nearly_all_holes_are_refused_by_their_layer_before_they_are_hashed() {
    for stored in [Stored::Plain, Stored::Gzip, Stored::Zstd] {
        for (size, reason) in [
            (65 << 30, "the image has more uncompressed bytes than 68719476736"),
            (60 << 30, "have more than 4294967296 bytes beside 200 for each compressed byte"),
            (5 << 30, "have more than 4294967296 bytes beside 200 for each compressed byte"),
        ] {
            let below = Layer::new(&Archive::new().file("a", "x").end(), stored, "ADD");
            let layer = sparse(size, stored);
            let name = digest(&layer.bytes);
            let began = std::time::Instant::now();
            let error = refused(&[below, layer]);
            assert!(error.contains(&format!("layer 2 of 2 ({name})")) && error.contains(reason), "{error}");
            assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
        }
    }
}

#[test]
fn a_lastlog_of_a_high_user_id_is_indexed_with_its_holes() {
    let world = World::new();
    // As `useradd --uid 1000000` leaves it.
    let size = 292 * 1_000_001;
    LayoutMaker::one(&world.at("layout"), &[sparse(size, Stored::Gzip)]);
    let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    let images = holdfast::image::Images::of(&world.at("state"));
    let index = images.open(&images.digests().unwrap()[0]).unwrap();
    assert_eq!(index.find(b"/var/log/lastlog").unwrap().map(|entry| entry.size), Some(size));
}

#[test]
fn a_layout_that_is_none_or_is_damaged_is_refused() {
    let world = World::new();
    let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("not an OCI image layout: oci-layout"), "{result:?}");
    let manifest = LayoutMaker::one(&world.at("layout"), &two_layers());
    let path = world.at("layout/blobs/sha256").join(&manifest[7..]);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = b' ';
    fs::write(&path, &bytes).unwrap();
    assert!(refused_in(&world).contains("its content has the digest"));
    fs::write(world.at("layout/index.json"), "{}").unwrap();
    assert!(refused_in(&world).contains("index.json"));
    fs::write(world.at("layout/oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert!(refused_in(&world).contains("is not supported"));
}

#[test]
fn an_index_that_indexes_name_again_and_again_is_refused_and_not_read_each_time() {
    let world = World::new();
    let mut maker = LayoutMaker::new(&world.at("layout"));
    let manifest = maker.manifest(&two_layers(), "amd64");
    let mut index = maker.index(&[manifest]);
    // 400 to the power of 3 reads, without a limit.
    for _ in 0..3 {
        index = maker.index(&vec![index; 400]);
    }
    maker.name(index, "os");
    let error = refused_in(&world);
    assert!(error.contains("name more than 256 image indexes"), "{error}");
}

#[test]
fn a_layout_with_more_images_or_descriptors_than_the_limits_is_refused_and_none_is_left_out() {
    let descriptor = |number: usize| {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        serde_json::json!({ "mediaType": media_type, "digest": digest(&number.to_le_bytes()), "size": 1 })
    };
    let error = |descriptors: usize, digests: usize| {
        let world = World::new();
        let mut maker = LayoutMaker::new(&world.at("layout"));
        let manifest = maker.manifest(&two_layers(), "amd64");
        let all: Vec<_> = (0..descriptors).map(|number| descriptor(number % digests)).collect();
        for some in all.chunks(1000) {
            maker.name(maker.index(some), "others");
        }
        maker.name(manifest, "os");
        refused_in(&world)
    };
    let images = error(4096, 4096);
    assert!(images.contains("name more than 4096 images"), "{images}");
    let descriptors = error(65_536, 1);
    assert!(descriptors.contains("name more than 65536 descriptors"), "{descriptors}");
}
