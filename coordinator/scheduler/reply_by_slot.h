#pragma once
// A step's reply, looked up by slot. Borrows the reply. Messages for slots that do not exist belong to no
// sequence, and are passed over.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/worker.pb.h"

namespace somnus {

class ReplyBySlot {
 public:
  ReplyBySlot(const v1::StepReply& reply, int32_t num_slots)
      : reply_(reply),
        tokens_(Index(reply.tokens(), num_slots)),
        prompt_logprobs_(Index(reply.prompt_logprobs(), num_slots)),
        drafts_(Index(reply.drafts(), num_slots)),
        pooled_(Index(reply.pooled(), num_slots)),
        errors_(Index(reply.slot_errors(), num_slots)) {}

  // A slot's tokens, which come one after the other.
  absl::Span<const v1::SampledToken* const> Tokens(int32_t slot) const {
    if (Find(tokens_, slot) == nullptr) return {};
    const v1::SampledToken* const* const first = tokens_[slot];
    const v1::SampledToken* const* const all_end = reply_.tokens().data() + reply_.tokens_size();
    const auto* const end = std::find_if(first, all_end, [&](auto* token) { return token->slot() != slot; });
    return {first, static_cast<size_t>(end - first)};
  }
  // Null where the reply has none for the slot.
  const v1::PromptLogprobs* PromptLogprobs(int32_t slot) const { return Find(prompt_logprobs_, slot); }
  const v1::DraftTokens* Proposals(int32_t slot) const { return Find(drafts_, slot); }
  const v1::PooledState* Pooled(int32_t slot) const { return Find(pooled_, slot); }
  const v1::SlotError* Error(int32_t slot) const { return Find(errors_, slot); }

 private:
  // Where the first of a slot's messages is; empty where there are no such messages.
  template <typename Message>
  using BySlot = std::vector<const Message* const*>;

  template <typename Message>
  static BySlot<Message> Index(const google::protobuf::RepeatedPtrField<Message>& messages,
                               int32_t num_slots) {
    BySlot<Message> by_slot(messages.empty() ? 0 : num_slots);
    for (int i = 0; i < messages.size(); ++i) {
      const int32_t slot = messages[i].slot();
      if (slot >= 0 && slot < num_slots && by_slot[slot] == nullptr) by_slot[slot] = messages.data() + i;
    }
    return by_slot;
  }
  template <typename Message>
  static const Message* Find(const BySlot<Message>& by_slot, int32_t slot) {
    return by_slot.empty() || by_slot[slot] == nullptr ? nullptr : *by_slot[slot];
  }

  const v1::StepReply& reply_;
  const BySlot<v1::SampledToken> tokens_;
  const BySlot<v1::PromptLogprobs> prompt_logprobs_;
  const BySlot<v1::DraftTokens> drafts_;
  const BySlot<v1::PooledState> pooled_;
  const BySlot<v1::SlotError> errors_;
};

}  // namespace somnus
