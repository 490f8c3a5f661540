#pragma once
// The token ids of a prompt: immutable, and shared by all copies, so that the choices of a request hold one
// vector. A value; threads may copy and read it at the same time.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace somnus {

class PromptIds {
 public:
  PromptIds() : PromptIds(std::vector<int32_t>()) {}
  // Vectors become prompts, and prompts are read as vectors, without ceremony.
  PromptIds(std::vector<int32_t> ids)  // NOLINT(google-explicit-constructor)
      : ids_(std::make_shared<const std::vector<int32_t>>(std::move(ids))), size_(ids_->size()) {}
  PromptIds(std::initializer_list<int32_t> ids) : PromptIds(std::vector<int32_t>(ids)) {}
  // A moved prompt is copied, so that no prompt is ever without its vector.
  PromptIds(const PromptIds&) = default;
  PromptIds& operator=(const PromptIds&) = default;
  operator const std::vector<int32_t>&() const { return *ids_; }  // NOLINT(google-explicit-constructor)

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int32_t* data() const { return ids_->data(); }
  std::vector<int32_t>::const_iterator begin() const { return ids_->begin(); }
  std::vector<int32_t>::const_iterator end() const { return ids_->end(); }
  int32_t operator[](size_t index) const { return (*ids_)[index]; }

  friend bool operator==(const PromptIds& a, const PromptIds& b) {
    return a.ids_ == b.ids_ || *a.ids_ == *b.ids_;
  }

 private:
  std::shared_ptr<const std::vector<int32_t>> ids_;  // never null
  size_t size_;  // of ids_: every step asks for it, and need not look elsewhere in memory
};

}  // namespace somnus
