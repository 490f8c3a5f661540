#include "allocator/use_tag.h"

#include <utility>
#include <vector>

namespace somnus {
namespace {

std::vector<std::string>& Scopes() {
  static thread_local std::vector<std::string> scopes = {"default"};
  return scopes;
}

}  // namespace

UseTag::UseTag(std::string tag) { Scopes().push_back(std::move(tag)); }

UseTag::~UseTag() { Scopes().pop_back(); }

const std::string& UseTag::Current() { return Scopes().back(); }

}  // namespace somnus
