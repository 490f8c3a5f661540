#include "coordinator/scheduler/constraints.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cpus.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// A mask takes some 30 us, as long as a thread takes to wake up.
constexpr size_t kSequencesPerHelper = 4;

bool IsConstrained(const ScheduledEntry& entry) {
  return entry.samples && entry.sequence->request.constraint != nullptr;
}

// Makes the sequence's matcher, which then has accepted all outputs, where there is none.
absl::Status MakeMatcher(Sequence* sequence) {
  if (sequence->matcher != nullptr) return absl::OkStatus();
  std::unique_ptr<TokenMatcher> matcher = sequence->request.constraint->NewMatcher();
  for (int64_t i = sequence->prompt_len(); i < static_cast<int64_t>(sequence->tokens.size()); ++i)
    RETURN_IF_ERROR(matcher->Accept(sequence->tokens[i]));
  sequence->matcher = std::move(matcher);
  return absl::OkStatus();
}

// Appends a mask for each token that the entry samples.
void AppendMasks(const ScheduledEntry& entry, std::string* allowed) {
  TokenMatcher& matcher = *entry.sequence->matcher;
  std::vector<uint32_t> mask(entry.sequence->request.constraint->num_mask_words());
  int32_t num_accepted = 0;
  for (size_t i = 0; !matcher.IsTerminated(); ++i) {
    if (!matcher.FillMask(absl::MakeSpan(mask))) std::fill(mask.begin(), mask.end(), ~0u);
    allowed->append(reinterpret_cast<const char*>(mask.data()), mask.size() * sizeof(uint32_t));
    if (i == entry.draft_tokens.size() || !matcher.Accept(entry.draft_tokens[i]).ok()) break;
    ++num_accepted;
  }
  matcher.Rollback(num_accepted);
}

}  // namespace

Constraints::Constraints(int32_t num_threads)
    : num_helpers_(
          static_cast<size_t>(num_threads > 0 ? num_threads : std::clamp(NumAllowedCpus() / 4, 1, 8)) - 1),
      helpers_(num_helpers_) {}

void Constraints::AddTo(InFlightStep* step, v1::StepRequest* request) {
  step->awaits_masks = std::any_of(step->entries.begin(), step->entries.end(), IsConstrained);
  if (step->awaits_masks) request->set_awaits_masks(true);
}

v1::StepMasks Constraints::MakeMasks(const InFlightStep& step) {
  v1::StepMasks masks;
  masks.set_step_id(step.step_id);
  std::vector<const ScheduledEntry*> entries;
  for (const ScheduledEntry& entry : step.entries) {
    // Nobody reads the sample of a sequence that has ended, or that is computed again. A sequence without a
    // matcher ends with Accept's error.
    if (!IsConstrained(entry) || entry.dropped || entry.sequence->finished()) continue;
    if (!MakeMatcher(entry.sequence.get()).ok()) continue;
    entries.push_back(&entry);
    masks.add_masks()->set_slot(entry.slot);
  }
  const size_t num_helpers = std::min(num_helpers_, entries.size() / kSequencesPerHelper);
  helpers_.ForEach(entries.size(), num_helpers, [&](size_t i) {
    AppendMasks(*entries[i], masks.mutable_masks(static_cast<int>(i))->mutable_allowed());
  });
  return masks;
}

absl::Status Constraints::Accept(Sequence* sequence, int32_t token) {
  absl::Status status = MakeMatcher(sequence);
  if (status.ok()) status = sequence->matcher->Accept(token);
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the sequence does not follow its grammar: ", status.message()));
}

absl::Status Constraints::Explain(const Sequence& sequence, const absl::Status& error) {
  if (sequence.matcher == nullptr) return error;
  const absl::Status own = sequence.matcher->error();
  if (own.ok()) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), ": ", own.message()));
}

}  // namespace somnus
