#include "allocator/region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Region>> Region::Reserve(VmmDriver* driver, std::string tag, int64_t bytes,
                                                        int64_t chunk_bytes) {
  const int64_t unit = driver->Granularity();
  const int64_t rounded = (bytes + unit - 1) / unit * unit;
  absl::StatusOr<void*> base = driver->Reserve(rounded);
  if (!base.ok()) return base.status();
  const int64_t chunk =
      chunk_bytes > 0 ? std::max(chunk_bytes / unit, int64_t{1}) * unit : driver->ChunkBytes();
  return std::unique_ptr<Region>(new Region(driver, std::move(tag), *base, rounded, chunk));
}

Region::~Region() {
  if (state_ == State::kResident) Detach().IgnoreError();
  if (state_ == State::kDetached) Release().IgnoreError();
  if (!unreleased_.empty()) Release().IgnoreError();
  if (base_ != nullptr && state_ == State::kEmpty) FreeAddress().IgnoreError();
}

int64_t Region::held_bytes() const {
  int64_t sum = 0;
  for (const Chunk& chunk : chunks_) sum += chunk.bytes;
  for (const Chunk& chunk : unreleased_) sum += chunk.bytes;
  return sum;
}

absl::Status Region::Populate(bool copy_follows) {
  if (absl::Status status = Release(); !status.ok()) return status;  // of what was left over
  absl::Status status = CreateChunks();
  if (status.ok()) {
    status = MapChunks(copy_follows);
    if (status.ok()) {
      state_ = State::kResident;
      return status;
    }
  }
  state_ = State::kDetached;
  Release().IgnoreError();
  return absl::IsResourceExhausted(status) ? WithShortage(status) : status;
}

absl::Status Region::Attach() {
  absl::Status status = MapChunks(/*copy_follows=*/false);
  if (status.ok()) state_ = State::kResident;
  return status;
}

absl::Status Region::Detach() {
  absl::Status status = driver_->Unmap(base_, bytes_);
  if (status.ok()) state_ = State::kDetached;
  return status;
}

absl::Status Region::Release() {
  std::vector<Chunk> pending = std::move(unreleased_);
  pending.insert(pending.end(), chunks_.begin(), chunks_.end());
  chunks_.clear();
  unreleased_.clear();
  if (state_ == State::kDetached) state_ = State::kEmpty;
  absl::Status first;
  for (const Chunk& chunk : pending) {
    absl::Status status = driver_->Release(chunk.handle);
    if (status.ok()) continue;
    unreleased_.push_back(chunk);
    first.Update(status);
  }
  return first;
}

absl::Status Region::FreeAddress() {
  absl::Status status = driver_->FreeAddress(base_, bytes_);
  if (status.ok()) base_ = nullptr;
  return status;
}

absl::Status Region::CreateChunks() {
  for (int64_t offset = 0; offset < bytes_;) {
    const int64_t bytes = std::min(chunk_bytes_, bytes_ - offset);
    absl::StatusOr<VmmDriver::Handle> handle = driver_->Create(bytes);
    if (!handle.ok()) return handle.status();
    chunks_.push_back({*handle, offset, bytes});
    offset += bytes;
  }
  return absl::OkStatus();
}

// Maps all chunks and opens them with one call; on an error none is mapped.
absl::Status Region::MapChunks(bool copy_follows) {
  absl::Status status;
  size_t mapped = 0;
  while (mapped < chunks_.size() && status.ok()) {
    status = driver_->Map(At(chunks_[mapped]), chunks_[mapped].bytes, chunks_[mapped].handle);
    if (status.ok()) ++mapped;
  }
  if (status.ok()) {
    status = copy_follows ? driver_->SetAccessForCopy(base_, bytes_) : driver_->SetAccess(base_, bytes_);
  }
  if (status.ok()) return status;
  const int64_t mapped_bytes = mapped < chunks_.size() ? chunks_[mapped].offset : bytes_;
  if (mapped_bytes > 0) driver_->Unmap(base_, mapped_bytes).IgnoreError();
  return status;
}

// Compares the whole region's need with what is available now that its own chunks are released.
absl::Status Region::WithShortage(const absl::Status& status) const {
  absl::StatusOr<int64_t> available = driver_->AvailableBytes();
  if (!available.ok() || *available >= bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(tag_, ": no memory for ", bytes_, " bytes: ", status.message()));
  }
  return absl::ResourceExhaustedError(absl::StrCat(tag_, ": ", bytes_, " bytes needed, ", *available,
                                                   " available, ", bytes_ - *available, " missing"));
}

}  // namespace somnus
