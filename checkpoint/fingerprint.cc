#include "checkpoint/fingerprint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "checkpoint/gguf/gguf_config.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/gguf_split.h"
#include "checkpoint/gguf/gguf_tensors.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_directory.h"
#include "checkpoint/tensor_table.h"

namespace somnus {
namespace {

// Changed whenever the same files get a different fingerprint.
constexpr uint64_t kHashMethod = 2;
constexpr size_t kMaxSampledTensors = 512;
constexpr uint64_t kSampleBytes = 4096;

absl::Status AddWholeFile(const std::string& path, Sha256* hash) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  hash->Add(file->text());
  return file->CheckWhole();
}

// A file counts by its place in the table's order, which the names in an index decide, and by its size. The
// file's own name does not count: two hosts may call a GGUF file differently.
template <typename Tensor, typename AddType>
void AddTable(const std::vector<const Tensor*>& tensors, Sha256* hash, const AddType& add_type) {
  absl::flat_hash_map<const MappedFile*, uint64_t> files;
  hash->Add(uint64_t{tensors.size()});
  for (const Tensor* tensor : tensors) {
    const auto [file, is_new] = files.emplace(tensor->source, files.size());
    if (is_new) hash->Add(tensor->source->size());
    hash->Add(file->second);
    hash->Add(tensor->name);
    add_type(*tensor);
    hash->Add(uint64_t{tensor->shape.size()});
    for (const int64_t dim : tensor->shape) hash->Add(static_cast<uint64_t>(dim));
    hash->Add(static_cast<uint64_t>(tensor->data - tensor->source->data()));
    hash->Add(tensor->bytes);
  }
}

template <typename Tensor>
absl::Status AddSamples(const std::vector<const Tensor*>& tensors, Sha256* hash) {
  const size_t count = std::min(tensors.size(), kMaxSampledTensors);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = *tensors[i * tensors.size() / count];
    const uint64_t bytes = std::min(tensor.bytes, kSampleBytes), last = tensor.bytes - bytes;
    for (const uint64_t begin : {uint64_t{0}, last / 2, last}) {
      hash->Add(absl::string_view(reinterpret_cast<const char*>(tensor.data + begin), bytes));
      if (last == 0) break;
    }
    RETURN_IF_ERROR(tensor.source->CheckWhole());
  }
  return absl::OkStatus();
}

absl::Status AddTensors(const std::vector<const TensorInfo*>& tensors, Sha256* hash) {
  AddTable(tensors, hash,
           [hash](const TensorInfo& tensor) { hash->Add(static_cast<uint64_t>(tensor.type)); });
  return AddSamples(tensors, hash);
}

// Adds the tensors that quantized weights are made of.
absl::Status AddRawTensors(const std::vector<const RawTensor*>& tensors, Sha256* hash) {
  AddTable(tensors, hash, [hash](const RawTensor& tensor) { hash->Add(absl::string_view(tensor.dtype)); });
  return AddSamples(tensors, hash);
}

absl::Status AddDirectory(const std::string& path, LoadFormat format, Sha256* hash) {
  RETURN_IF_ERROR(AddWholeFile(path + "/config.json", hash));
  if (format == LoadFormat::kDummy) return absl::OkStatus();
  TensorTable tensors;
  RETURN_IF_ERROR(ReadSafetensorsDirectory(path, &tensors));
  RETURN_IF_ERROR(AddTensors(tensors.All(), hash));
  return AddRawTensors(tensors.AllRaw(), hash);
}

// The bytes before the first tensor's data: metadata, and descriptions of all tensors.
absl::string_view Header(const MappedFile& file, const GgufFile& gguf) {
  uint64_t end = file.size();
  for (const GgufTensor& tensor : gguf.tensors()) end = std::min(end, tensor.offset);
  return file.text().substr(0, end);
}

absl::Status AddGguf(const std::string& given_path, Sha256* hash) {
  const std::string path = FirstGgufPart(given_path);
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const absl::StatusOr<GgufFile> gguf = GgufFile::Parse(*file);
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(gguf.status());
  hash->Add(file->size());
  hash->Add(Header(*file, *gguf));
  ASSIGN_OR_RETURN(const int64_t num_parts, CountGgufParts(*gguf));
  ASSIGN_OR_RETURN(const Family* family, FindGgufFamily(*gguf));
  TensorTable tensors;
  RETURN_IF_ERROR(AddGgufTensors(*family, *gguf, *file, &tensors));
  RETURN_IF_ERROR(AddGgufSplits(*family, path, *gguf, num_parts, &tensors).status());
  return AddTensors(tensors.All(), hash);
}

}  // namespace

absl::StatusOr<std::string> CheckpointFingerprint(const std::string& path, LoadFormat format) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("model ", BaseName(path), ": cannot open"));
  }
  Sha256 hash;
  hash.Add(kHashMethod);
  hash.Add(static_cast<uint64_t>(format));
  RETURN_IF_ERROR(S_ISDIR(info.st_mode) ? AddDirectory(path, format, &hash) : AddGguf(path, &hash));
  return hash.Hex();
}

}  // namespace somnus
