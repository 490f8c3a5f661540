#include "allocator/region_backup.h"

#include <utility>
#include <vector>

namespace somnus {
namespace {

class RegionBackup : public Backup {
 public:
  void Add(int64_t offset, std::unique_ptr<Backup> backup) { parts_.push_back({offset, std::move(backup)}); }

  absl::Status Restore(void* data) override {
    for (const Part& part : parts_) {
      absl::Status status = part.backup->Restore(static_cast<char*>(data) + part.offset);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  int64_t stored_bytes() const override {
    int64_t bytes = 0;
    for (const Part& part : parts_) bytes += part.backup->stored_bytes();
    return bytes;
  }

 private:
  struct Part {
    int64_t offset;
    std::unique_ptr<Backup> backup;
  };
  std::vector<Part> parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backup>> SaveRegion(const Region& region, BackupStore* store) {
  auto backup = std::make_unique<RegionBackup>();
  for (const Region::Extent& extent : region.Extents()) {
    absl::StatusOr<std::unique_ptr<Backup>> part =
        store->Save(static_cast<const char*>(region.data()) + extent.offset, extent.bytes);
    if (!part.ok()) return part.status();
    backup->Add(extent.offset, *std::move(part));
  }
  return std::unique_ptr<Backup>(std::move(backup));
}

}  // namespace somnus
