#include "text/tools/marker_scanner.h"

#include <utility>

#include "absl/strings/match.h"

namespace somnus {

const Marker* MarkerScanner::Read(char c, std::string* text) {
  held_ += c;
  while (!held_.empty()) {
    bool may_become_one = false;
    for (const Marker& marker : markers_) {
      if (marker.text == held_) {
        held_.clear();
        return &marker;
      }
      may_become_one = may_become_one || absl::StartsWith(marker.text, held_);
    }
    if (may_become_one) return nullptr;
    *text += held_.front();
    held_.erase(0, 1);
  }
  return nullptr;
}

std::string MarkerScanner::Take() { return std::exchange(held_, {}); }

bool MarkerScanner::HoldsPartOf(Marker::Role one, Marker::Role other) const {
  if (held_.empty()) return false;
  for (const Marker& marker : markers_) {
    if ((marker.role == one || marker.role == other) && absl::StartsWith(marker.text, held_)) return true;
  }
  return false;
}

}  // namespace somnus
