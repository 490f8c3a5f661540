#include "tools/bench/sleep/phase_table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace somnus {
namespace {

PhaseTable Measured() {
  PhaseTable table;
  table.AddFloors({.fault = 10e9, .copy = 20e9});
  table.Add("engine", "sleep", 1000, 0.004, 0.002);
  table.Add("engine", "sleep", 1000, 0.009, 0.003);
  table.Add("engine", "sleep", 1000, 0.002, 0.002);
  table.Add("engine", "first <token>", 0, 0.010);
  table.AddQuantity("engine", "released", "%", 99);
  table.AddQuantity("engine", "released", "%", 99.5);
  return table;
}

TEST(PhaseTable, RatiosAreThoseOfTheRounds) {
  const nlohmann::json json = Measured().ToJson();
  const nlohmann::json& sleep = json.at("phases").at(0);
  EXPECT_EQ(sleep.at("seconds"), (nlohmann::json{0.004, 0.009, 0.002}));
  EXPECT_DOUBLE_EQ(sleep.at("median_seconds"), 0.004);
  EXPECT_DOUBLE_EQ(sleep.at("ratio_to_floor"), 2.0);
  EXPECT_FALSE(json.at("phases").at(1).contains("ratio_to_floor"));
  EXPECT_DOUBLE_EQ(json.at("quantities").at(0).at("median"), 99.25);
}

TEST(PhaseTable, TextHasMediansAndRanges) {
  const std::string text = Measured().ToText();
  EXPECT_NE(text.find("4.00 ms (2.00..9.00), 2.00 of its floor of 2.00 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("engine: released 99.25 % (99.00..99.50)"), std::string::npos) << text;
}

TEST(PhaseTable, ThePictureHasABarForEachPhaseAndAMarkForEachFloor) {
  const std::string svg = Measured().ToSvg();
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  // The longest phase fills the width; the other is 0.4 of it.
  EXPECT_NE(svg.find("width='420.0'"), std::string::npos) << svg;
  EXPECT_NE(svg.find("width='168.0'"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("<line"), svg.rfind("<line")) << svg;
  EXPECT_NE(svg.find("first &lt;token&gt;"), std::string::npos) << svg;
}

}  // namespace
}  // namespace somnus
