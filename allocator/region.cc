#include "allocator/region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/memory_shortage.h"

namespace somnus {
namespace {

int64_t RoundDown(int64_t bytes, int64_t unit) { return std::max(bytes / unit, int64_t{1}) * unit; }

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> Region::Reserve(VmmDriver* driver, std::string tag,
                                                        const RegionShape& shape) {
  const int64_t unit = driver->Granularity();
  const int64_t rounded = (shape.row_bytes * shape.num_rows + unit - 1) / unit * unit;
  absl::StatusOr<void*> base = driver->Reserve(rounded);
  if (!base.ok()) return base.status();
  RegionShape own = shape;
  own.chunk_bytes = shape.chunk_bytes > 0 ? RoundDown(shape.chunk_bytes, unit) : driver->ChunkBytes();
  return std::unique_ptr<Region>(new Region(driver, std::move(tag), *base, own, rounded));
}

Region::Region(VmmDriver* driver, std::string tag, void* base, const RegionShape& shape, int64_t bytes)
    : driver_(driver), tag_(std::move(tag)), base_(base), shape_(shape), bytes_(bytes) {
  CountWanted();
}

Region::~Region() {
  if (base_ != nullptr) Free().IgnoreError();
  // The addresses can be free of chunks even if some chunks were not released.
  if (base_ != nullptr && chunks_.empty()) driver_->FreeAddress(base_, bytes_).IgnoreError();
}

int64_t Region::held_bytes() const {
  int64_t sum = 0;
  for (const Chunk& chunk : chunks_) sum += chunk.bytes;
  for (const Chunk& chunk : unreleased_) sum += chunk.bytes;
  return sum;
}

// Whether a chunk at `offset` holds a wanted byte: of the row in which the chunk begins, or the first byte of
// the next row, which is always wanted.
bool Region::Wants(int64_t offset, int64_t bytes) const {
  const int64_t row = offset / shape_.row_bytes, next_row = (row + 1) * shape_.row_bytes;
  return offset - row * shape_.row_bytes < shape_.wanted_row_bytes ||
         (row + 1 < shape_.num_rows && next_row < offset + bytes);
}

std::vector<Region::Extent> Region::Extents() const {
  std::vector<Extent> extents;
  for (int64_t offset = 0; offset < bytes_; offset += shape_.chunk_bytes) {
    const int64_t bytes = std::min(shape_.chunk_bytes, bytes_ - offset);
    if (!Wants(offset, bytes)) continue;
    const bool follows = !extents.empty() && extents.back().offset + extents.back().bytes == offset;
    if (follows) {
      extents.back().bytes += bytes;
    } else {
      extents.push_back({offset, bytes});
    }
  }
  return extents;
}

void Region::CountWanted() {
  wanted_bytes_ = 0;
  for (const Extent& extent : Extents()) wanted_bytes_ += extent.bytes;
}

// In the grid of all chunks.
std::vector<Region::Extent> Region::MissingChunks() const {
  std::vector<Extent> missing;
  auto next = chunks_.begin();
  for (int64_t offset = 0; offset < bytes_; offset += shape_.chunk_bytes) {
    const int64_t bytes = std::min(shape_.chunk_bytes, bytes_ - offset);
    if (next != chunks_.end() && next->offset == offset) {
      ++next;
    } else if (Wants(offset, bytes)) {
      missing.push_back({offset, bytes});
    }
  }
  return missing;
}

absl::Status Region::Populate(bool copy_follows) {
  const std::vector<Extent> missing = MissingChunks();
  if (!missing.empty()) {
    const auto none = [](const Chunk&) { return false; };
    if (absl::Status status = ReleaseChunks(none); !status.ok()) return status;  // of leftovers
  }
  absl::Status status = AddChunks(missing);
  if (status.ok()) status = MapChunks(copy_follows);
  if (status.ok()) {
    state_ = State::kResident;
    return status;
  }
  const auto is_new = [&](const Chunk& chunk) {
    const auto at = std::lower_bound(missing.begin(), missing.end(), chunk.offset,
                                     [](const Extent& a, int64_t offset) { return a.offset < offset; });
    return !chunk.mapped && at != missing.end() && at->offset == chunk.offset;
  };
  ReleaseChunks(is_new).IgnoreError();
  if (state_ == State::kEmpty && !chunks_.empty()) state_ = State::kDetached;
  int64_t needed = 0;
  for (const Extent& extent : missing) needed += extent.bytes;
  return absl::IsResourceExhausted(status) ? WithShortage(status, needed) : status;
}

absl::Status Region::Detach() {
  const absl::Status status = UnmapChunks([](const Chunk&) { return true; });
  const bool detached =
      std::any_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return !chunk.mapped; });
  if (detached) state_ = State::kDetached;
  return status;
}

absl::Status Region::Release() {
  const absl::Status status = ReleaseChunks([](const Chunk& chunk) { return !chunk.mapped; });
  if (chunks_.empty()) state_ = State::kEmpty;
  return status;
}

absl::Status Region::Resize(int64_t wanted_row_bytes) {
  const int64_t before = std::exchange(shape_.wanted_row_bytes, wanted_row_bytes);
  if (state_ == State::kResident) {
    if (absl::Status status = Populate(); !status.ok()) {
      shape_.wanted_row_bytes = before;
      return status;
    }
  }
  CountWanted();
  const auto unwanted = [this](const Chunk& chunk) { return !Wants(chunk.offset, chunk.bytes); };
  UnmapChunks(unwanted).IgnoreError();
  ReleaseChunks([&](const Chunk& chunk) { return !chunk.mapped && unwanted(chunk); }).IgnoreError();
  if (chunks_.empty()) state_ = State::kEmpty;
  return absl::OkStatus();
}

absl::Status Region::Vacate() {
  absl::Status status = Detach();
  if (status.ok()) status = Release();
  return status;
}

absl::Status Region::Free() {
  absl::Status status = Vacate();
  if (status.ok()) status = driver_->FreeAddress(base_, bytes_);
  if (status.ok()) base_ = nullptr;
  return status;
}

absl::Status Region::AddChunks(const std::vector<Extent>& missing) {
  if (missing.empty()) return absl::OkStatus();
  std::vector<int64_t> sizes;
  for (const Extent& extent : missing) sizes.push_back(extent.bytes);
  std::vector<VmmDriver::Handle> handles;
  const absl::Status status = driver_->CreateAll(sizes, &handles);
  for (size_t i = 0; i < handles.size(); ++i)
    chunks_.push_back({handles[i], missing[i].offset, missing[i].bytes});
  std::sort(chunks_.begin(), chunks_.end(),
            [](const Chunk& a, const Chunk& b) { return a.offset < b.offset; });
  return status;
}

// Maps the unmapped chunks, and opens them with as few calls as possible; after an error none of these chunks
// is mapped.
absl::Status Region::MapChunks(bool copy_follows) {
  absl::Status status;
  std::vector<size_t> mapped;
  for (size_t i = 0; i < chunks_.size() && status.ok(); ++i) {
    if (chunks_[i].mapped) continue;
    status = driver_->Map(At(chunks_[i].offset), chunks_[i].bytes, chunks_[i].handle);
    if (!status.ok()) break;
    chunks_[i].mapped = true;
    mapped.push_back(i);
  }
  if (status.ok()) status = SetAccess(mapped, copy_follows);
  if (status.ok()) return status;
  std::vector<bool> is_new(chunks_.size(), false);
  for (const size_t i : mapped) is_new[i] = true;
  UnmapChunks([&](const Chunk& chunk) { return is_new[&chunk - chunks_.data()]; }).IgnoreError();
  return status;
}

absl::Status Region::SetAccess(const std::vector<size_t>& chunks, bool copy_follows) {
  for (size_t i = 0; i < chunks.size();) {
    const int64_t begin = chunks_[chunks[i]].offset;
    int64_t end = begin;
    while (i < chunks.size() && chunks_[chunks[i]].offset == end) end += chunks_[chunks[i++]].bytes;
    absl::Status status = copy_follows ? driver_->SetAccessForCopy(At(begin), end - begin)
                                       : driver_->SetAccess(At(begin), end - begin);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// One call for each range of chunks that are mapped and chosen. Goes on after an error, and returns the first
// error.
template <typename Chosen>
absl::Status Region::UnmapChunks(const Chosen& chosen) {
  absl::Status first;
  for (size_t i = 0; i < chunks_.size();) {
    if (!chunks_[i].mapped || !chosen(chunks_[i])) {
      ++i;
      continue;
    }
    const size_t begin = i;
    int64_t end = chunks_[i].offset;
    while (i < chunks_.size() && chunks_[i].offset == end && chunks_[i].mapped && chosen(chunks_[i]))
      end += chunks_[i++].bytes;
    const absl::Status status = driver_->Unmap(At(chunks_[begin].offset), end - chunks_[begin].offset);
    for (size_t k = begin; k < i && status.ok(); ++k) chunks_[k].mapped = false;
    first.Update(status);
  }
  return first;
}

// Releases leftovers and the chosen chunks. No chosen chunk may be mapped.
template <typename Chosen>
absl::Status Region::ReleaseChunks(const Chosen& chosen) {
  std::vector<Chunk> pending = std::exchange(unreleased_, {});
  std::vector<Chunk> staying;
  for (const Chunk& chunk : chunks_) (chosen(chunk) ? pending : staying).push_back(chunk);
  chunks_ = std::move(staying);
  std::vector<VmmDriver::Piece> pieces;
  for (const Chunk& chunk : pending) pieces.push_back({chunk.handle, chunk.bytes});
  std::vector<VmmDriver::Handle> kept;
  absl::Status status = driver_->ReleaseAll(pieces, &kept);
  auto stays = kept.begin();
  for (const Chunk& chunk : pending) {
    if (stays == kept.end() || *stays != chunk.handle) continue;
    unreleased_.push_back(chunk);
    ++stays;
  }
  return status;
}

// Compares the needed bytes with the bytes that are available now that the region's own new chunks are
// released.
absl::Status Region::WithShortage(const absl::Status& status, int64_t needed) const {
  absl::StatusOr<int64_t> available = driver_->AvailableBytes();
  MemoryShortage shortage = {
      .tag = tag_, .needed_bytes = needed, .missing_bytes = needed, .memory = MemoryKind::kDevice};
  if (!available.ok() || *available >= needed) {
    const std::vector<MemoryShortage> known = ShortagesOf(status);
    if (!known.empty()) shortage.missing_bytes = std::min(needed, known.front().missing_bytes);
    return WithShortages(absl::ResourceExhaustedError(
                             absl::StrCat(tag_, ": no memory for ", needed, " bytes: ", status.message())),
                         {shortage});
  }
  shortage.missing_bytes = MissingBytes(needed, *available);
  return WithShortages(
      absl::ResourceExhaustedError(absl::StrCat(tag_, ": ", needed, " bytes needed, ", *available,
                                                " available, ", shortage.missing_bytes, " missing")),
      {shortage});
}

}  // namespace somnus
