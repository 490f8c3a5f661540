#pragma once
// The tag of memory that is allocated without naming one: for code that cannot pass a tag on, such as a
// framework that only knows malloc.
//
//   UseTag scope("weights");
//   allocator->Allocate(UseTag::Current(), bytes);

#include <string>

namespace somnus {

// Names the tag of this thread until destruction; scopes nest. Each thread has its own tag.
class UseTag {
 public:
  explicit UseTag(std::string tag);
  ~UseTag();
  UseTag(const UseTag&) = delete;
  UseTag& operator=(const UseTag&) = delete;

  // The tag of the innermost scope of this thread; "default" outside any.
  static const std::string& Current();
};

}  // namespace somnus
