#pragma once
// Finds markers in text that comes byte by byte, and holds back what may become a marker. Not thread safe.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

struct Marker {
  enum class Role {
    kThinkBegin,
    kThinkEnd,
    kAnswerBegin,
    kAnswerEnd,
    kSectionBegin,
    kSectionEnd,
    kCallBegin,
    kCallEnd,
    kNoise
  };
  Role role;
  absl::string_view text;  // not empty, and must outlive the scanner
};

class MarkerScanner {
 public:
  // Where a marker begins with another marker, the shorter one is found.
  explicit MarkerScanner(std::vector<Marker> markers) : markers_(std::move(markers)) {}

  // Reads a byte. Appends to `text` the bytes that belong to no marker. Returns the marker that the byte
  // completes, or null.
  const Marker* Read(char c, std::string* text);
  // Returns the text that is held back, and forgets the text.
  std::string Take();
  // Whether the held text begins a marker of one of the two roles.
  bool HoldsPartOf(Marker::Role one, Marker::Role other) const;

 private:
  std::vector<Marker> markers_;
  std::string held_;  // begins a marker, and is shorter than the marker
};

}  // namespace somnus
