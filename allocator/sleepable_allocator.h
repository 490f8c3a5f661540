#pragma once
// Device memory that can be released and mapped again at the same address. Memory is in regions, each with a
// tag ("weights", "kv_cache", "workspace", or any other string); a sleep releases the physical memory under
// tags, a wake-up maps new memory there.
//
// Ownership: owns every region and every backup; the VmmDriver is borrowed and must outlive it. Thread
// safety: all methods are thread safe, but nothing may read or write the memory while a sleep or a wake-up
// runs, nor write the memory between PrepareSleep and the following CommitSleep or AbortSleep. The allocator
// never knows the meaning of the bytes.
//
// Several ranks change together in two phases. Prepare does everything that can fail, and can be undone
// without loss; Commit cannot fail, Abort cannot either. Sleep and WakeUp do both phases for one rank alone.
// At most one change is prepared at a time; another Prepare is refused with FailedPrecondition. Allocate and
// Free work in between: a new region does not take part, and neither does a freed region.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace somnus {

class SpillIo;
class VmmDriver;

enum class RestoreMode {
  kDiscard,  // contents are lost, and undefined after the wake-up
  kBackup,   // contents are saved before the memory is released, and restored by the wake-up
};

// Where kBackup saves contents, and for how long. A backup that outlives the wake-up makes the next sleep of
// an unchanged region copy nothing; then a caller that changes a region's bytes must call DropBackups.
enum class BackupPolicy {
  kRetain,    // in host memory, beyond the wake-up
  kRelease,   // in host memory until the wake-up; where the device's memory is the host's, the region keeps
              // its pages
  kFile,      // in a file, beyond the wake-up: neither device nor host memory
  kCompress,  // compressed in host memory, beyond the wake-up (piece_codec.h: CheckCompression)
};

struct SleepableAllocatorOptions {
  BackupPolicy backup = BackupPolicy::kRetain;
  std::string spill_dir;    // of kFile; the file has no name, and ends with the process
  int64_t chunk_bytes = 0;  // physical memory is created in chunks of this size; 0: the driver's
  // As SpillOptions::open_io, for tests.
  std::function<std::unique_ptr<SpillIo>(int fd, int depth)> open_spill_io;
};

using BytesByTag = std::map<std::string, int64_t>;

struct SleepReport {
  struct Tag {
    int64_t freed = 0;           // physical bytes that the tag no longer holds; a backup may have taken them
    int64_t backed_up = 0;       // bytes that sleep now with a backup, made now or kept from before
    int64_t copied = 0;          // bytes that this sleep copied for that
    int64_t discarded = 0;       // bytes with contents that this sleep gave up
    int64_t still_resident = 0;  // physical bytes that the driver failed to release; tried again later
  };
  std::map<std::string, Tag> tags;  // every tag that the sleep named and that has regions
  double backup_seconds = 0;        // in PrepareSleep
  double release_seconds = 0;       // in CommitSleep
};

struct WakeReport {
  struct Tag {
    int64_t mapped = 0;    // bytes that were asleep and are resident now
    int64_t restored = 0;  // mapped bytes that came back from a backup; the rest is undefined
  };
  std::map<std::string, Tag> tags;  // every tag that this wake-up made resident
  double map_seconds = 0;           // overlaps with restore_seconds: copies run while the rest is mapped
  double restore_seconds = 0;       // from the first copy until the last has ended
};

struct WakeNeed {
  BytesByTag needed;      // physical bytes of the sleeping regions, by tag, without tags that are awake
  int64_t available = 0;  // bytes that the driver could hand out now
  BytesByTag missing;     // bytes that `available` does not cover, by tag in alphabetical order; empty:
                          // enough
};

struct TagStats {
  int64_t resident = 0;     // physical bytes held, without backups
  int64_t sleeping = 0;     // bytes that sleeping regions will hold once awake
  int64_t host_backup = 0;  // host memory of backups, retained backups included
  int64_t file_backup = 0;  // disk space of backups
};

class SleepableAllocator {
 public:
  static std::unique_ptr<SleepableAllocator> Create(VmmDriver* driver,
                                                    const SleepableAllocatorOptions& options = {});
  virtual ~SleepableAllocator() = default;

  // A new region of at least `bytes`, reserved and mapped, zeroed on the host. ResourceExhausted says how
  // much was missing.
  virtual absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) = 0;
  // The same for a region of `num_rows` rows of `row_bytes` each, of which only the first `wanted_row_bytes`
  // have memory, in whole chunks. Where rows are short the chunks are smaller than the driver's, so that
  // Resize can release most of the unwanted memory: a chunk is at most a sixteenth of a row, if the
  // granularity allows.
  virtual absl::StatusOr<void*> AllocateRows(const std::string& tag, int64_t row_bytes, int64_t num_rows,
                                             int64_t wanted_row_bytes) = 0;
  // Changes wanted_row_bytes of a region by its address. Addresses stay, and so do the contents of bytes that
  // were wanted before and still are; the rest is undefined. Only growth of a region that is awake can fail,
  // and has changed nothing then; a region asleep wakes up in the new size. Memory that the driver fails to
  // release stays in ResidentBytes; the next Resize or sleep tries again. Drops a retained backup.
  // FailedPrecondition: a change is prepared, or the region sleeps with a backup.
  virtual absl::Status Resize(void* data, int64_t wanted_row_bytes) = 0;
  // From now on new regions with these tags sleep: the regions are reserved, and get their memory, with
  // undefined contents, at the wake-up.
  virtual void BeginAsleep(const std::vector<std::string>& tags) = 0;
  // Frees a whole region by its address, asleep or not, with its backup.
  virtual absl::Status Free(void* data) = 0;

  // Saves the contents of every region whose tag is in `modes` with kBackup; nothing is released. Afterwards
  // either CommitSleep or AbortSleep must come; until then the memory can be read. After an error nothing is
  // prepared and all is as before; ResourceExhausted says how much the backups lacked (memory_shortage.h).
  virtual absl::Status PrepareSleep(const std::map<std::string, RestoreMode>& modes) = 0;
  // Releases the regions of the prepared sleep. A region that sleeps already loses its backup when its mode
  // is kDiscard (level 1 deepens to 2). Where the driver fails to release memory, the driver is asked once
  // more at once. Memory that stays even so is in still_resident and in ResidentBytes; the region sleeps all
  // the same, and the next sleep or wake-up tries again. Without a prepared sleep CommitSleep does nothing.
  virtual SleepReport CommitSleep() = 0;
  // Forgets the prepared sleep, and gives up the backups that PrepareSleep made: another rank may lack the
  // host memory or the space on the disk.
  virtual void AbortSleep() = 0;

  // The memory that PrepareWake of these tags (empty: all) would need. Other processes may take the memory in
  // between: CheckWake is for a message before anything is done, and only PrepareWake decides.
  virtual absl::StatusOr<WakeNeed> CheckWake(const std::vector<std::string>& tags) = 0;
  // Maps every sleeping region whose tag is in `tags` (empty: all) and restores backups. Afterwards the
  // memory can be used, and either CommitWake or AbortWake must come. After an error nothing is prepared, all
  // sleeps as before, and PrepareWake can be tried again; ResourceExhausted says how much each tag lacked.
  // DataLoss: a backup in a file is damaged; a sleep of the tag with kDiscard gives the backup up.
  virtual absl::Status PrepareWake(const std::vector<std::string>& tags) = 0;
  // The regions of the prepared wake-up are awake; backups that are not retained are given up. Without a
  // prepared wake-up CommitWake does nothing.
  virtual WakeReport CommitWake() = 0;
  // Releases the memory that PrepareWake had mapped: asleep as before, backups included. Nobody may have
  // written to regions that have a backup; writes to regions without a backup are lost.
  virtual void AbortWake() = 0;

  // How many bytes a sleep with these modes would copy and release, or a wake-up of these tags (empty: all)
  // map and copy. The driver's ByteMeter counts the same number meanwhile, unless the driver fails to
  // release.
  virtual int64_t SleepBytes(const std::map<std::string, RestoreMode>& modes) = 0;
  virtual int64_t WakeBytes(const std::vector<std::string>& tags) = 0;

  // PrepareSleep and CommitSleep. Returns the bytes freed by tag.
  absl::StatusOr<BytesByTag> Sleep(const std::map<std::string, RestoreMode>& modes);
  // PrepareWake and CommitWake. Returns the bytes mapped by tag.
  absl::StatusOr<BytesByTag> WakeUp(const std::vector<std::string>& tags);

  // Drops the retained backups of awake regions with this tag, because their bytes have changed, also of
  // regions that a prepared wake-up restored. Regions asleep keep their backups.
  virtual void DropBackups(const std::string& tag) = 0;

  // Physical bytes held, by tag; a tag that holds nothing has 0. ResidentBytes and Stats return at once, also
  // while another call works; the numbers then follow that call region by region.
  virtual BytesByTag ResidentBytes() const = 0;
  virtual std::map<std::string, TagStats> Stats() const = 0;
};

}  // namespace somnus
