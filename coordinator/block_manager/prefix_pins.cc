#include "coordinator/block_manager/prefix_pins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {

void PrefixPins::Add(PrefixPin prefix) {
  SOMNUS_CHECK(!prefix.tokens.empty() && prefix.tokens.size() % block_size_ == 0);
  const auto has_its_id = [&](const Pin& pin) { return pin.prefix.id == prefix.id; };
  SOMNUS_CHECK(std::none_of(pins_.begin(), pins_.end(), has_its_id));
  Pin& pin = pins_.emplace_back();
  pin.prefix = std::move(prefix);
  const absl::Span<const int32_t> tokens = pin.prefix.tokens;
  uint64_t hash = 0;
  for (size_t begin = 0; begin < tokens.size(); begin += block_size_) {
    hash = HashBlock(hash, tokens.subspan(begin, block_size_),
                     begin == 0 ? absl::string_view(pin.prefix.salt) : absl::string_view());
    pin.hashes.push_back(hash);
  }
  ++num_incomplete_;
  while (HoldNext(&pin)) continue;
}

void PrefixPins::Remove(const std::string& id) {
  const auto pin =
      std::find_if(pins_.begin(), pins_.end(), [&](const Pin& pin) { return pin.prefix.id == id; });
  if (pin == pins_.end()) return;
  Truncate(&*pin, 0);
  --num_incomplete_;
  pins_.erase(pin);
}

BlockContent PrefixPins::Next(const Pin& pin) const {
  const size_t index = pin.held.size();
  BlockContent content;
  content.parent_content_id = index == 0 ? 0 : pin.held.back()->content_id;
  content.hash = pin.hashes[index];
  content.tokens = absl::MakeConstSpan(pin.prefix.tokens).subspan(index * block_size_, block_size_);
  if (index == 0) content.salt = pin.prefix.salt;
  return content;
}

bool PrefixPins::HoldNext(Pin* pin) {
  if (pin->is_complete()) return false;
  KvBlock* block = pool_->Find(Next(*pin));
  if (block == nullptr) return false;
  pool_->Reference(block);
  ++num_holders_[block->id];
  pin->held.push_back(block);
  num_incomplete_ -= pin->is_complete() ? 1 : 0;
  return true;
}

void PrefixPins::HoldWhereNext(const KvBlock& block) {
  for (Pin& pin : pins_) {
    if (!pin.is_complete() && pin.hashes[pin.held.size()] == block.hash) HoldNext(&pin);
  }
}

void PrefixPins::Truncate(Pin* pin, size_t count) {
  if (pin->held.size() <= count) return;
  num_incomplete_ += pin->is_complete() ? 1 : 0;
  for (; pin->held.size() > count; pin->held.pop_back()) {
    KvBlock* const block = pin->held.back();
    const auto holders = num_holders_.find(block->id);
    if (--holders->second == 0) num_holders_.erase(holders);
    pool_->Release(block);
  }
}

void PrefixPins::DropForgotten(int64_t PinReleases::*cause) {
  if (std::exchange(num_forgotten_seen_, pool_->num_used_forgotten()) == pool_->num_used_forgotten()) return;
  for (Pin& pin : pins_) {
    const auto lost = std::find_if(pin.held.begin(), pin.held.end(),
                                   [](const KvBlock* block) { return block->content_id == 0; });
    if (lost == pin.held.end()) continue;
    Truncate(&pin, static_cast<size_t>(lost - pin.held.begin()));
    ++(releases_.*cause);
  }
}

int32_t PrefixPins::GiveWay(int32_t count) {
  for (int32_t before = count - 1; before >= 0; --before) {
    Pin& pin = pins_[static_cast<size_t>(before)];
    const bool frees = std::any_of(pin.held.begin(), pin.held.end(), [&](const KvBlock* block) {
      return block->ref_count == num_holders_.at(block->id);
    });
    if (!frees) continue;
    Truncate(&pin, 0);
    ++releases_.no_blocks;
    return before;
  }
  return -1;
}

std::vector<int32_t> PrefixPins::HeldBlocks() const {
  std::vector<int32_t> ids;
  for (const Pin& pin : pins_) {
    for (const KvBlock* block : pin.held) ids.push_back(block->id);
  }
  return ids;
}

absl::Status PrefixPins::CheckIntegrity(std::vector<int32_t>* counts) const {
  absl::flat_hash_map<int32_t, int32_t> holders;
  int32_t num_incomplete = 0;
  for (const Pin& pin : pins_) {
    num_incomplete += pin.is_complete() ? 0 : 1;
    uint64_t parent = 0;
    for (const KvBlock* block : pin.held) {
      if (block->content_id == 0 || block->parent_content_id != parent) {
        return absl::InternalError(
            absl::StrCat("pin ", pin.prefix.id, " holds block ", block->id, ", which has other contents"));
      }
      parent = block->content_id;
      ++holders[block->id];
      ++(*counts)[block->id];
    }
  }
  if (holders != num_holders_ || num_incomplete != num_incomplete_)
    return absl::InternalError("the blocks of pins do not add up");
  return absl::OkStatus();
}

}  // namespace somnus
