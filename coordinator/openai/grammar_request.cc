#include "coordinator/openai/grammar_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "coordinator/structured/grammar_cache.h"

namespace somnus {
namespace {

ApiError GrammarError(const absl::Status& status, const std::string& field) {
  if (absl::IsUnavailable(status) || absl::IsCancelled(status))
    return {503, CleanMessage(status.message()), field};
  return BadRequest(field, absl::StrCat(field, ": ", CleanMessage(status.message())));
}

}  // namespace

GrammarNumbers CountGrammars(const GrammarCache& grammars) {
  const GrammarCache::Counts counts = grammars.counts();
  return {.entries = counts.entries,
          .bytes = counts.bytes,
          .waiting = counts.waiting,
          .hits = counts.hits,
          .misses = counts.misses,
          .refused = counts.refused,
          .expired = counts.expired,
          .evicted = counts.evicted};
}

void MakeConstraint(const ServedModel& model, const GenerateParams& params,
                    std::function<void(ConstraintOrError)> done) {
  const auto num_words = static_cast<int32_t>(MaskWords(model.config.vocab_size));
  if (!AwaitsGrammar(params)) {
    const bool is_bounded = params.reasoning.has_value() && params.reasoning->max_tokens.has_value();
    return done(is_bounded
                    ? MakeAnswerConstraint(nullptr, params.reasoning, model.tokenizer, nullptr, num_words)
                    : nullptr);
  }
  if (model.grammars == nullptr) {
    return done(BadRequest(params.grammar->field,
                           absl::StrCat("this model has no structured outputs: ", model.grammar_problem)));
  }
  model.grammars->Get(
      params.grammar->source,
      [field = params.grammar->field, reasoning = params.reasoning, tokenizer = model.tokenizer,
       forced = model.forced_tokenizer, num_words, done = std::move(done)](GrammarCache::Result grammar) {
        if (!grammar.ok()) return done(GrammarError(grammar.status(), field));
        done(MakeAnswerConstraint(*std::move(grammar), reasoning, tokenizer, forced, num_words));
      });
}

std::optional<ApiError> AwaitConstraint(const ServedModel& model, GenerateParams* params) {
  absl::Notification known;
  ConstraintOrError made;
  MakeConstraint(model, *params, [&](ConstraintOrError result) {
    made = std::move(result);
    known.Notify();
  });
  known.WaitForNotification();
  if (auto* error = std::get_if<ApiError>(&made)) return std::move(*error);
  params->constraint = std::get<std::shared_ptr<const TokenConstraint>>(std::move(made));
  return std::nullopt;
}

}  // namespace somnus
