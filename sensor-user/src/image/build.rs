//! An index, built from the layers of an image.
//!
//! In: a layout and what to choose. Out: the index file. Each layer is read once: its blob's digest, its uncompressed digest, its
//! entries and their contents' digests come from one pass.

use super::{
    blob::{BlobReader, digest_text},
    error::{ImageError, LayerFault},
    images::Images,
    layout::{Chosen, Layout},
    ostree::described,
    shipped_etc::WithShippedEtc,
    write::{self, Indexed},
    zstd::ZstdReader,
};
use flate2::bufread::MultiGzDecoder;
use sensor_model::{
    image::{
        Choice, Compression, Descriptor, ImageLimits, ImageMeta, ImageSource, ImageTree, LayerMeta,
        LayerReader,
    },
    ostree::parse_xattrs,
};
use sha2::{Digest as _, Sha256};
use std::{
    io::{self, BufReader, Read},
    path::Path,
};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// How far the work is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The layer that is read, counted from 1.
    pub layer: usize,
    /// How many layers there are.
    pub layers: usize,
    /// Compressed bytes of all layers that were read.
    pub read: u64,
    /// Compressed bytes of all layers.
    pub size: u64,
}

/// Indexes one image of a layout.
///
/// # Errors
/// No image can be taken, a layer cannot be read, or the index cannot be written. Then no index is left.
pub fn index_image(
    layout: &Path,
    choice: &Choice,
    images: &Images,
    limits: ImageLimits,
    progress: &mut dyn FnMut(Progress),
) -> Result<Indexed, ImageError> {
    let layout = Layout::open(layout)?;
    let chosen = layout.choose(choice)?;
    let mut tree = read_layers(&layout, &chosen, limits, progress)?;
    let object_xattrs = tree.add_attributes(|bytes| parse_xattrs(bytes).map(|xattrs| described(&xattrs)));
    let mut meta = ImageMeta { object_xattrs, ..meta(chosen, &tree) };
    if meta.ostree
        && let Some(tree) = WithShippedEtc::of(&tree)
    {
        meta.shipped_etc = true;
        return write::write(images, meta, &tree);
    }
    write::write(images, meta, &tree)
}

/// What the index says about the image.
fn meta(chosen: Chosen, tree: &ImageTree) -> ImageMeta {
    let Chosen { digest, indexes, names, manifest, config } = chosen;
    let layers = manifest.layers.iter().zip(config.layers);
    let layers = layers.map(|((blob, _), (diff_id, history))| LayerMeta {
        digest: blob.digest.clone(),
        diff_id,
        size: Some(blob.size),
        package: None,
        components: blob.components(),
        history,
    });
    ImageMeta {
        source: ImageSource::Layers,
        digest,
        manifest: None,
        indexes,
        config: manifest.config.digest.clone(),
        platform: config.platform.to_string(),
        names,
        created: config.created,
        machine_config: config.machine_config,
        layers: layers.collect(),
        entries: 0,
        bytes: tree.bytes(),
        ostree: config.ostree || tree.contains(b"/sysroot/ostree/repo/objects"),
        object_xattrs: false,
        shipped_etc: false,
        state: None,
        damaged: None,
    }
}

/// Reads all layers, the lowest first.
pub(super) fn read_layers(
    layout: &Layout,
    chosen: &Chosen,
    limits: ImageLimits,
    progress: &mut dyn FnMut(Progress),
) -> Result<ImageTree, ImageError> {
    let layers = &chosen.manifest.layers;
    let size = layers.iter().map(|(blob, _)| blob.size).fold(0, u64::saturating_add);
    let mut tree = ImageTree::new(limits);
    let mut buffer = vec![0; PIECE];
    let mut before = 0;
    for (place, ((blob, compression), (diff_id, _))) in layers.iter().zip(&chosen.config.layers).enumerate() {
        let (number, count) = (place + 1, layers.len());
        let mut on_read =
            |read| progress(Progress { layer: number, layers: count, read: before + read, size });
        let layer = Layer { blob, compression: *compression, diff_id, limits };
        layer.read(layout, &mut tree, &mut buffer, &mut on_read).map_err(|reason| ImageError::Layer {
            number,
            count,
            digest: blob.digest.clone(),
            reason,
        })?;
        before += blob.size;
    }
    Ok(tree)
}

/// One layer.
struct Layer<'a> {
    blob: &'a Descriptor,
    compression: Compression,
    diff_id: &'a str,
    limits: ImageLimits,
}

impl Layer<'_> {
    fn read(
        &self,
        layout: &Layout,
        tree: &mut ImageTree,
        buffer: &mut [u8],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), LayerFault> {
        let mut blob = BlobReader::open(&layout.path, self.blob)?;
        let count = blob.count();
        let source = BufReader::with_capacity(PIECE, &mut blob);
        let mut decompressed: Box<dyn Read + '_> = match self.compression {
            Compression::None => Box::new(source),
            Compression::Gzip => Box::new(MultiGzDecoder::new(source)),
            Compression::Zstd => Box::new(ZstdReader::new(source)),
        };
        let mut layer = LayerReader::begin_compressed(tree, self.blob.size);
        let mut digest = Sha256::new();
        let mut total = 0_u64;
        let read = loop {
            let length = match decompressed.read(buffer) {
                Ok(0) => break Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break Err(LayerFault::Compression(error)),
            };
            digest.update(&buffer[..length]);
            total += length as u64;
            let ImageLimits { ratio, ratio_from, .. } = self.limits;
            if total > ratio_from && total / ratio > count.get() {
                break Err(LayerFault::Ratio { limit: ratio, from: ratio_from });
            }
            if let Err(error) = layer.push(&buffer[..length], tree) {
                break Err(error.into());
            }
            progress(count.get());
        };
        drop(decompressed);
        match read {
            // A damaged blob explains what its content makes of the decompressor and of the archive.
            Err(LayerFault::Ratio { limit, from }) => return Err(LayerFault::Ratio { limit, from }),
            Err(error) => {
                blob.finish(self.blob, buffer)?;
                return Err(error);
            }
            Ok(()) => blob.finish(self.blob, buffer)?,
        }
        layer.finish()?;
        let found = digest_text(&digest.finalize());
        if found == self.diff_id {
            Ok(())
        } else {
            Err(LayerFault::DiffId { expected: self.diff_id.to_owned(), found })
        }
    }
}
