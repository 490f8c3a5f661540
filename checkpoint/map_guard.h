#pragma once
// A guard for maps of files, because a file's bytes can go away: another process truncates the file, or the
// disk fails. The kernel then raises SIGBUS at the next read of the map, which ends the process. While a
// MapGuard watches the map, the rest of it, from the page that could not be read, is replaced by zeros and
// the map is marked as lost: the reader goes on, and checks lost() before using the bytes that were read.
//
// Process-wide: the first guard installs a handler for SIGBUS, which passes on every fault outside guarded
// maps to the previous handler. Thread safe.

#include <cstddef>

namespace somnus {

class MapGuard {
 public:
  // Watches [begin, begin + bytes) until destruction; destroy the guard before unmapping. watching() is false
  // when there was no room for a further map.
  MapGuard(const void* begin, size_t bytes);
  ~MapGuard();
  MapGuard(const MapGuard&) = delete;
  MapGuard& operator=(const MapGuard&) = delete;

  bool watching() const { return slot_ != nullptr; }
  bool lost() const;

 private:
  struct Slot;
  struct Registry;

  Slot* slot_ = nullptr;
};

}  // namespace somnus
