#pragma once
// Reads a model from disk: a Hugging Face directory or a GGUF file, behind one interface.
//
// Ownership: a Checkpoint maps the files read-only (mmap, no whole-file copies) and keeps the maps as long as
// the Checkpoint exists; TensorInfo::data points into the maps. Thread safety: immutable after Open; all
// const methods are thread safe. Errors: NotFound (no such file), InvalidArgument (damaged or contradictory:
// names file, tensor or key, and reason), Unimplemented (valid, but an architecture, type or rope that this
// version does not support), DataLoss (a file that was cut, or could not be read, while in use). A damaged
// file never crashes: every length, offset and shape is checked against the file before use.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/head_order.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

class MappedFile;
struct PackedWeight;  // checkpoint/packed_weight.h
struct TensorPart;    // checkpoint/tensor_part.h

// One stored tensor. Row-major; shape in Hugging Face's order ([out_features, in_features] for a linear
// layer), also for GGUF, where the reader reverses the file's dimensions.
struct TensorInfo {
  std::string name;  // canonical (Hugging Face) name, e.g. "model.layers.3.self_attn.q_proj.weight"
  StorageType type;
  std::vector<int64_t> shape;
  const uint8_t* data;  // in the map; may be unaligned
  uint64_t bytes;
  std::string file;  // file name without directories, for messages
  // The order of the stored rows, and a number that the stored values lack (canonical_tensors.h). ReadRows
  // gives rows in canonical order, and adds the number; `data` is as stored. ReadStoredRows gives rows in
  // canonical order, and adds nothing.
  HeadOrder heads;
  float offset = 0;
  // The map that `data` points into; ReadRows checks that the map is still whole.
  const MappedFile* source = nullptr;
  // Not null for a matrix that quantization_config describes: the matrix's numbers, scales and zero points,
  // each a tensor of its own in the files. `data`, `bytes` and `source` are of the packed numbers; `type` is
  // the type of the result of ReadStoredRows, kF32 where no type of blocks can hold the numbers.
  std::shared_ptr<const PackedWeight> packed;
  // Not null for a matrix or vector within a larger tensor of the files. `data`, `bytes` and `source` are of
  // the larger tensor.
  std::shared_ptr<const TensorPart> part;
  // For kF8E4M3: a row has several scales, and shares them with all rows of its block. Blocks have a multiple
  // of 32 rows, and the first block begins with row 0.
  bool scaled_by_blocks = false;
};

enum class LoadFormat {
  kAuto,   // as the files are
  kDummy,  // random weights: of a Hugging Face directory only config.json is read
};

class Checkpoint {
 public:
  // `path`: a directory with config.json, or a .gguf file (any of several: NAME-00001-of-00003.gguf). Reads
  // headers only, and no tensor's data, except a stored head that the configuration ties to the embedding.
  // GGUF tensors appear under their Hugging Face names. Every tensor that config() calls for is there, in the
  // right shape; further tensors may be there, too.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path,
                                                          LoadFormat format = LoadFormat::kAuto);
  virtual ~Checkpoint() = default;

  // True when the weights are random: a device may then make its own.
  virtual bool is_dummy() const { return false; }

  virtual const ModelConfig& config() const = 0;
  // NotFound where the files have no tokenizer, Unimplemented where the only tokenizer is of a kind that is
  // not read. Looks for the files, or keys of a GGUF file, and reads nothing.
  virtual absl::Status FindTokenizer() const { return absl::OkStatus(); }
  // Data of the tokenizer: merges, vocabulary, added tokens, pre-tokenizer, chat template.
  // Parsed on first call (a 128 k vocabulary takes a while); an error here leaves the tensors usable.
  virtual absl::StatusOr<TokenizerData> ReadTokenizer() const = 0;

  // nullptr when there is no such tensor.
  virtual const TensorInfo* Find(absl::string_view name) const = 0;
  virtual std::vector<const TensorInfo*> Tensors() const = 0;

  // Converts rows [row_begin, row_end), columns [col_begin, col_end) of a 1-D or 2-D tensor to fp32,
  // row-major and dense, into `out`. A 1-D tensor of n elements is a column of n rows. InvalidArgument when
  // out of range, DataLoss when the file has lost its data. For quantized types col_begin and col_end need
  // not be multiples of the block size.
  virtual absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                int64_t col_begin, int64_t col_end, float* out) const = 0;
  // The same rectangle as stored, byte for byte. InvalidArgument when the columns' bounds cut a block of a
  // quantized type. Unimplemented for a dummy, which stores nothing.
  virtual absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                      int64_t col_begin, int64_t col_end, void* out) const = 0;
};

}  // namespace somnus
