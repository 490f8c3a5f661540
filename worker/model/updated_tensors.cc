#include "worker/model/updated_tensors.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"

namespace somnus {
namespace {

// An error repeats at most this much of the names that a client has sent, or has not sent.
constexpr size_t kMaxNameInErrors = 256;
constexpr size_t kMaxNamesInErrors = 5;

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.subspan(0, 8), ", "), shape.size() > 8 ? ", ..." : "", "]");
}

absl::Status Invalid(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", absl::CHexEscape(name.substr(0, kMaxNameInErrors)), ": ", what));
}

absl::StatusOr<StorageType> ToStorageType(v1::WeightDType dtype) {
  switch (dtype) {
    case v1::WEIGHT_DTYPE_FLOAT32:
      return StorageType::kF32;
    case v1::WEIGHT_DTYPE_BFLOAT16:
      return StorageType::kBF16;
    case v1::WEIGHT_DTYPE_FLOAT16:
      return StorageType::kF16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype ", static_cast<int>(dtype), " is none that an update may have"));
  }
}

int64_t BytesOf(absl::Span<const int64_t> shape, StorageType type) {
  int64_t bytes = type == StorageType::kF32 ? 4 : 2;
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

}  // namespace

struct UpdatedTensors::Hash {
  Hash() : state(XXH3_createState()) {
    SOMNUS_CHECK(state != nullptr);
    XXH3_64bits_reset(state);
  }
  ~Hash() { XXH3_freeState(state); }
  void Add(const void* data, size_t size) { XXH3_64bits_update(state, data, size); }

  XXH3_state_t* const state;
};

UpdatedTensors::UpdatedTensors(const ModelConfig& config, bool needs_all, Place place, ReadCuda read_cuda)
    : tensors_(MemoryCheckpoint::Create(config)),
      needs_all_(needs_all),
      place_(std::move(place)),
      read_cuda_(std::move(read_cuda)),
      hash_(std::make_unique<Hash>()) {
  const TensorSpec* head = FindTensor(*config.family, TensorRole::kHead);
  if (head == nullptr || head->present(config)) return;
  tied_name_ = TensorName(*config.family, TensorRole::kHead) + ".weight";
  tied_shape_ = ShapeOf(*head, config);
}

UpdatedTensors::~UpdatedTensors() = default;

uint64_t UpdatedTensors::checksum() const { return XXH3_64bits_digest(hash_->state); }

absl::Status UpdatedTensors::Add(const v1::WeightChunk& chunk) {
  absl::Status status = chunk.name().empty() ? absl::OkStatus() : Begin(chunk);
  if (status.ok()) status = AddSource(chunk);
  if (!status.ok()) part_ = Part();  // in_part_ remembers the tensor's name
  return status;
}

absl::StatusOr<UpdatedTensors::Part> UpdatedTensors::PartOf(const v1::WeightChunk& first) const {
  const std::string& name = first.name();
  const SentTensor* tensor = tensors_->FindSent(name);
  const bool tied = !tied_name_.empty() && name == tied_name_;
  if (tensor == nullptr && !tied) return Invalid(name, "the model has none of this name");
  const std::vector<int64_t>& shape = tied ? tied_shape_ : tensor->shape;
  if (!std::equal(first.shape().begin(), first.shape().end(), shape.begin(), shape.end())) {
    return Invalid(name, absl::StrCat("shape ", ShapeText(first.shape()), " is sent, the model's is ",
                                      ShapeText(shape)));
  }
  const absl::StatusOr<StorageType> type = ToStorageType(first.dtype());
  if (!type.ok()) return Invalid(name, std::string(type.status().message()));
  const int64_t bytes = BytesOf(shape, *type), num_slices = tied ? 1 : tensor->num_slices;
  return Part{
      .name = name, .tensor = tensor, .type = *type, .bytes = bytes, .slice_bytes = bytes / num_slices};
}

absl::Status UpdatedTensors::Check(const v1::WeightChunk& first) const { return PartOf(first).status(); }

absl::Status UpdatedTensors::Begin(const v1::WeightChunk& chunk) {
  const std::string& name = chunk.name();
  if (!part_.name.empty()) {
    return Invalid(name, absl::StrCat("it begins before ", part_.name, " has ended, of which ",
                                      part_.received, " of ", part_.bytes, " bytes have come"));
  }
  ASSIGN_OR_RETURN(part_, PartOf(chunk));
  in_part_.insert(name);
  hash_->Add(name.data(), name.size());
  return absl::OkStatus();
}

absl::Status UpdatedTensors::AddSource(const v1::WeightChunk& chunk) {
  if (part_.name.empty())
    return absl::InvalidArgumentError("chunk: it names no tensor, and none has been begun");
  if (chunk.name().empty() && (chunk.dtype() != v1::WEIGHT_DTYPE_UNSPECIFIED || chunk.shape_size() > 0))
    return Invalid(part_.name, "dtype and shape come with its name, in its first chunk alone");
  if (chunk.has_data()) {
    hash_->Add(chunk.data().data(), chunk.data().size());
    return AddBytes({reinterpret_cast<const uint8_t*>(chunk.data().data()), chunk.data().size()}, nullptr);
  }
  if (chunk.has_cuda_memory()) return AddCudaMemory(chunk.cuda_memory());
  if (!chunk.has_shared_memory()) return Invalid(part_.name, "a chunk has neither data nor shared memory");
  const v1::SharedMemory& shared = chunk.shared_memory();
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::OpenShared(shared.name());
  if (!file.ok()) return Invalid(part_.name, std::string(file.status().message()));
  const int64_t size = static_cast<int64_t>((*file)->size());
  if (shared.offset() < 0 || shared.bytes() < 0 || shared.offset() > size ||
      shared.bytes() > size - shared.offset()) {
    return Invalid(part_.name, absl::StrCat((*file)->name(), " has ", size, " bytes, and not ",
                                            shared.bytes(), " from ", shared.offset(), " on"));
  }
  return AddBytes({(*file)->data() + shared.offset(), static_cast<size_t>(shared.bytes())}, file->get());
}

absl::Status UpdatedTensors::AddBytes(absl::Span<const uint8_t> bytes, const MappedFile* source) {
  RETURN_IF_ERROR(CheckRoom(static_cast<int64_t>(bytes.size())));
  do {
    const int64_t count = InSlice(static_cast<int64_t>(bytes.size()));
    if (count == part_.slice_bytes) {  // no copy is needed
      num_bytes_ += count;
      part_.received += count;
      RETURN_IF_ERROR(FinishSlice(bytes.data(), source));
    } else {
      ASSIGN_OR_RETURN(uint8_t* const to, TakeMemory());
      if (to != nullptr && count > 0) std::memcpy(to, bytes.data(), static_cast<size_t>(count));
      if (source != nullptr) RETURN_IF_ERROR(source->CheckWhole());
      RETURN_IF_ERROR(Received(count));
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  } while (!bytes.empty());
  return absl::OkStatus();
}

absl::Status UpdatedTensors::AddCudaMemory(const v1::CudaMemory& memory) {
  if (read_cuda_ == nullptr) return Invalid(part_.name, "memory of a GPU cannot be opened here");
  if (memory.offset() < 0 || memory.bytes() < 0)
    return Invalid(part_.name, "memory of a GPU begins before its allocation, or ends before it begins");
  RETURN_IF_ERROR(CheckRoom(memory.bytes()));
  v1::CudaMemory next = memory;
  for (int64_t left = memory.bytes();;) {
    next.set_bytes(InSlice(left));
    ASSIGN_OR_RETURN(uint8_t* const to, TakeMemory());
    if (to != nullptr && next.bytes() > 0) {
      const absl::Status read = read_cuda_(next, to);
      if (!read.ok()) return Invalid(part_.name, std::string(read.message()));
    }
    RETURN_IF_ERROR(Received(next.bytes()));
    left -= next.bytes();
    if (left == 0) return absl::OkStatus();
    next.set_offset(next.offset() + next.bytes());
  }
}

absl::Status UpdatedTensors::CheckRoom(int64_t bytes) const {
  if (bytes <= part_.bytes - part_.received) return absl::OkStatus();
  const uint64_t sent = static_cast<uint64_t>(part_.received) + static_cast<uint64_t>(bytes);
  return Invalid(part_.name, absl::StrCat("it has ", part_.bytes, " bytes, and ", sent, " are sent"));
}

int64_t UpdatedTensors::InSlice(int64_t bytes) const {
  return std::min(bytes, part_.slice_bytes - part_.in_slice);
}

absl::StatusOr<uint8_t*> UpdatedTensors::TakeMemory() {
  if (part_.tensor == nullptr) return nullptr;
  if (part_.memory == nullptr) part_.memory.reset(new (std::nothrow) uint8_t[part_.slice_bytes]);
  if (part_.memory != nullptr) return part_.memory.get() + part_.in_slice;
  return absl::ResourceExhaustedError(
      absl::StrCat("tensor ", part_.name, ": no memory for ", part_.slice_bytes, " bytes"));
}

absl::Status UpdatedTensors::Received(int64_t bytes) {
  num_bytes_ += bytes;
  part_.received += bytes;
  part_.in_slice += bytes;
  return part_.in_slice == part_.slice_bytes ? FinishSlice(part_.memory.get(), nullptr) : absl::OkStatus();
}

absl::Status UpdatedTensors::FinishSlice(const uint8_t* data, const MappedFile* source) {
  if (part_.tensor != nullptr) {
    const std::vector<const TensorInfo*> held =
        tensors_->Hold(*part_.tensor, part_.slice, part_.type, data, source);
    const auto release = absl::MakeCleanup([this] { tensors_->Release(); });
    for (const TensorInfo* tensor : held) {
      RETURN_IF_ERROR(place_(*tensors_, *tensor));
      whole_.insert(tensor->name);
    }
  }
  part_.in_slice = 0;
  ++part_.slice;
  if (part_.received == part_.bytes) Finish();
  return absl::OkStatus();
}

void UpdatedTensors::Finish() {
  const Part part = std::exchange(part_, Part());
  in_part_.erase(part.name);
  sent_.insert(part.name);
}

absl::Status UpdatedTensors::EndStream() {
  const Part part = std::exchange(part_, Part());
  if (part.name.empty()) return absl::OkStatus();
  return Invalid(part.name,
                 absl::StrCat("the stream ended after ", part.received, " of its ", part.bytes, " bytes"));
}

absl::Status UpdatedTensors::CheckComplete() const {
  std::vector<std::string> missing(in_part_.begin(), in_part_.end());
  std::sort(missing.begin(), missing.end());
  if (needs_all_) {
    for (const TensorInfo* tensor : tensors_->Tensors()) {
      if (!whole_.contains(tensor->name) && !in_part_.contains(tensor->name)) missing.push_back(tensor->name);
    }
  }
  if (missing.empty()) return absl::OkStatus();
  const size_t count = missing.size();
  missing.resize(std::min(count, kMaxNamesInErrors));
  return absl::InvalidArgumentError(
      absl::StrCat(count, " tensors are missing, or have come in part: ", absl::StrJoin(missing, ", "),
                   count > missing.size() ? ", ..." : ""));
}

}  // namespace somnus
