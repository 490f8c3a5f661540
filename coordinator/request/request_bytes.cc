#include "coordinator/request/request_bytes.h"

#include "absl/container/flat_hash_map.h"

namespace somnus {
namespace {

constexpr int64_t kMapNodeBytes = 48;
constexpr int64_t kVectorBytes = 40;  // with the allocation's header
// A sequence's objects on the way through the API, the engine and the scheduler.
constexpr int64_t kRequestBytes = 2048;
// The prompt, and the sequence's tokens, which begin with the prompt. A bound: the choices of a request share
// the prompt.
constexpr int64_t kCopiesOfPrompt = 2;

int64_t IdBytes(size_t count) { return static_cast<int64_t>(count * sizeof(int32_t)); }

}  // namespace

int64_t SamplingParamsBytes(const SamplingParams& s) {
  int64_t bytes = static_cast<int64_t>(sizeof(SamplingParams)) +
                  kMapNodeBytes * static_cast<int64_t>(s.logit_bias.size()) +
                  IdBytes(s.stop_token_ids.size() + s.eos_token_ids.size() + s.allowed_token_ids.size());
  for (const std::vector<int32_t>& word : s.bad_words) bytes += kVectorBytes + IdBytes(word.size());
  for (const BadText& text : s.bad_texts)
    bytes += kVectorBytes + static_cast<int64_t>(text.pieces.size() * sizeof(BadText::Piece));
  if (s.beam_search.has_value()) bytes += IdBytes(s.beam_search->eos_token_ids.size());
  return bytes;
}

void SetQueuedBytes(std::vector<EngineRequest>* requests) {
  // By record: first how many requests share the record, then each request's part of the record's bytes.
  absl::flat_hash_map<const SamplingParams*, int64_t> shares;
  for (const EngineRequest& request : *requests) ++shares[request.sampling.get()];
  for (auto& [sampling, share] : shares) share = (SamplingParamsBytes(*sampling) + share - 1) / share;
  for (EngineRequest& request : *requests) {
    const std::optional<BeamSearchParams>& beams = request.sampling->beam_search;
    const int64_t num_sequences = beams.has_value() ? beams->width : 1;
    request.queued_bytes =
        num_sequences * (kRequestBytes + kCopiesOfPrompt * IdBytes(request.prompt.size())) +
        static_cast<int64_t>(request.id.size() + request.cache_salt.size() + request.user.size()) +
        request.held_bytes + shares[request.sampling.get()];
  }
}

}  // namespace somnus
