#pragma once
// The disk that the ranks of a simulated host share for their spill files. SpillFile and the threads that
// read and write the file are the product's own: disk.cc defines the system calls.
//
// A file has no name and belongs to one process, and the file's space is free again when the file is closed
// or the process ends. The file system's abilities are drawn: O_DIRECT, space that is taken before a write,
// holes.

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/simulation/world.h"

namespace somnus::simulation {

class Disk {
 public:
  // The value of --spill-dir.
  static constexpr absl::string_view kDir = "/simulated-disk";
  // Descriptors from here on are files of the disk.
  static constexpr int kFirstFile = 1 << 24;
  static constexpr int64_t kPageBytes = 4096;

  explicit Disk(World* world);
  ~Disk();
  Disk(const Disk&) = delete;
  // That of the world that runs now, or null.
  static Disk* current();

  // Faults. The n-th call from now on that takes space or writes (1 is the next) finds the disk full, once.
  void FailAt(int n) { fail_in_ = n; }
  // The n-th read from now on brings something else than the written bytes, once.
  void DamageReadAt(int n) { damage_in_ = n; }
  // Other users take all free space, for so long.
  void Fill(absl::Duration duration);
  // How many calls have found the disk full, how many reads were damaged, and how many writes were made.
  int num_full() const { return num_full_; }
  int num_damaged() const { return num_damaged_; }
  int64_t num_writes() const { return num_writes_; }
  // When the other users give back the space.
  absl::Duration filled_until() const { return filled_until_; }

  // The bytes that the files of a process take.
  int64_t UsedBytes(int pid) const;
  bool HasFiles(int pid) const;

  // The calls of the system, which return -errno. A read or a write may move fewer bytes than asked for.
  int Open(int flags);
  int Close(int file);
  int Allocate(int file, int mode, int64_t offset, int64_t bytes);
  int Truncate(int file, int64_t bytes);
  int Sync(int file);
  int64_t Write(int file, const char* data, int64_t bytes, int64_t offset);
  int64_t Read(int file, char* data, int64_t bytes, int64_t offset);
  int64_t FreeBytes() const;

 private:
  struct File {
    int pid = 0;
    int64_t size = 0;
    std::map<int64_t, std::string> pages;  // by number; an unwritten page is empty
    bool dirty = false;                    // since the last Sync
  };

  File* Find(int file);
  // Returns -ENOSPC where the page of the file has no space, and there is none.
  int TakePage(File* file, int64_t page);
  bool IsFullNow();
  int64_t SomePages(int64_t bytes);
  void Spend();

  World& world_;
  Random& random_;
  const bool direct_, preallocates_, punches_;
  const int64_t capacity_pages_;
  std::map<int, File> files_;
  int next_file_ = kFirstFile;
  int64_t used_pages_ = 0;
  absl::Duration filled_until_;
  int fail_in_ = 0, damage_in_ = 0;
  int num_full_ = 0, num_damaged_ = 0;
  int64_t num_writes_ = 0;
};

}  // namespace somnus::simulation
