#include "tests/text_tools/recorded_tables.h"

namespace somnus {

std::vector<RecordedTurn> ReasoningTurns() {
  return {
      {"openai: analysis, preamble, calls",
       "openai",
       "openai_gptoss",
       false,
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I "
       "look.<|end|>"
       "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
       "{\"city\": \"Paris\", \"days\": 3}<|call|><|start|>assistant "
       "to=functions.get_time<|channel|>commentary json<|message|>{}",
       {"Hm.", "I look.", {kParisCall, kTimeCall}}},
      {"openai: analysis and answer",
       "openai",
       "openai_gptoss",
       false,
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
       "<|start|>assistant<|channel|>final<|message|>It is\n5 < 6.<|return|>",
       {"Hm.\nSo.", "It is\n5 < 6.", {}}},
      {"openai: no tools",
       "",
       "openai_gptoss",
       false,
       "<|channel|>commentary to=functions.get_time<|message|>{}<|call|>",
       {"", "{}", {}}},
      {"openai: no channels",
       "openai",
       "",
       false,
       "to begin with: 5 < 6.",
       {"", "to begin with: 5 < 6.", {}}},
      {"openai: the answer of a prompt that has begun it",
       "openai",
       "openai_gptoss",
       true,
       "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
       {"Hm.", "Yes.", {}}},
      {"think: once more",
       "",
       "qwen3",
       true,
       "<think>\nHm.\n\nSo </thin.\n</think>\n</think>\n\nYes </think> <think>.\n",
       {"Hm.\n\nSo </thin.", "Yes </think> <think>.\n", {}}},
      {"think: empty", "hermes", "qwen3", false, "<think>\n\n</think>\n\nYes.", {"", "Yes.", {}}},
      {"cohere",
       "",
       "cohere_command3",
       false,
       "<|START_THINKING|>Hm.<|END_THINKING|>Yes.",
       {"Hm.", "Yes.", {}}},
      {"minimax_m3", "", "minimax_m3", false, "<mm:think>Hm.</mm:think>Yes.", {"Hm.", "Yes.", {}}},
  };
}

}  // namespace somnus
