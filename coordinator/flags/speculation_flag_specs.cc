// The flags about speculative decoding, for the table of the coordinator's flags.
#include "coordinator/flags/flag_specs.h"
#include "proto/limits.h"

namespace somnus {

FlagGroup SpeculationFlags(Flags* f) {
  return {
      "Speculative decoding",
      {
          Flag::Int(
              "num-speculative-tokens", &f->engine.scheduler.speculation.num_speculative_tokens, 0,
              kMaxSpeculativeTokens,
              "tokens that one step guesses of a sequence and checks, at most; the answers are the same; "
              "0: none"),
          Flag::OneOf<std::string>(
              "speculative", &f->speculative, {{"ngram", "ngram"}, {"draft", "draft"}},
              "where guesses come from: ngram, what followed the last tokens where they occurred before in "
              "prompt or output; draft, what a small model expects (--draft-model)"),
          Flag::Text("draft-model", &f->draft_model,
                     "of --speculative=draft: Hugging Face directory or GGUF file of a small model with the "
                     "model's tokenizer, which the workers run beside it")
              .Shows("PATH"),
          Flag::Switch("drafts-must-pay", &f->engine.scheduler.speculation.must_pay,
                       "a sequence has no guesses for a while where they take more time than they save, as "
                       "measured"),
          Flag::Int("prompt-lookup-min", &f->prompt_lookup_min, 1, 64,
                    "tokens that must have occurred before"),
          Flag::Int("prompt-lookup-max", &f->prompt_lookup_max, 1, 64,
                    "tokens, the last ones, of which the occurrence counts that agrees with the most"),
      }};
}

}  // namespace somnus
