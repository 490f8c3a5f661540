#include "tools/simulator/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace somnus {
namespace {

// In pixels.
constexpr int kLeft = 70, kTop = 40, kPlotWidth = 440, kPlotHeight = 260, kLegendWidth = 170, kBottom = 50;
constexpr int kWidth = kLeft + kPlotWidth + kLegendWidth, kHeight = kTop + kPlotHeight + kBottom;
constexpr const char* kColors[] = {"#1f5fa8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#7f8c8d"};
constexpr int kTicks = 5;

const char* Color(size_t index) { return kColors[index % std::size(kColors)]; }

std::string Text(double x, double y, const std::string& text, const char* attributes = "") {
  const std::string escaped = absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  return absl::StrFormat("<text x='%.1f' y='%.1f' %s>%s</text>\n", x, y, attributes, escaped);
}

std::string Begin(const std::string& title) {
  return absl::StrFormat(
             "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
             "font-size='12'>\n<rect width='%d' height='%d' fill='white'/>\n",
             kWidth, kHeight, kWidth, kHeight) +
         Text(kLeft, 22, title, "font-size='14'");
}

std::string Frame() {
  return absl::StrFormat("<rect x='%d' y='%d' width='%d' height='%d' fill='none' stroke='#444'/>\n", kLeft,
                         kTop, kPlotWidth, kPlotHeight);
}

std::string Legend(const std::vector<std::string>& names) {
  std::string svg;
  for (size_t i = 0; i < names.size(); ++i) {
    const double y = kTop + 12 + 20.0 * static_cast<double>(i);
    absl::StrAppendFormat(&svg, "<rect x='%d' y='%.1f' width='12' height='12' fill='%s'/>\n",
                          kLeft + kPlotWidth + 12, y - 10, Color(i));
    svg += Text(kLeft + kPlotWidth + 30, y, names[i]);
  }
  return svg;
}

std::string YAxis(double most, const std::string& label) {
  std::string svg;
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double y = kTop + kPlotHeight - static_cast<double>(kPlotHeight) * tick / kTicks;
    svg += Text(kLeft - 8, y + 4, absl::StrFormat("%.3g", most * tick / kTicks), "text-anchor='end'");
    absl::StrAppendFormat(&svg, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#ddd'/>\n", kLeft,
                          kLeft + kPlotWidth, y, y);
  }
  absl::StrAppendFormat(&svg,
                        "<text transform='translate(16 %d) rotate(-90)' text-anchor='middle'>%s</text>\n",
                        kTop + kPlotHeight / 2, label);
  return svg;
}

}  // namespace

std::string ToSvg(const LineChart& chart) {
  double x_most = 0;
  std::vector<std::string> names;
  for (const LineChart::Series& series : chart.series) {
    names.push_back(series.name);
    for (const auto& [x, y] : series.points) x_most = std::max(x_most, x);
  }
  if (x_most == 0) x_most = 1;
  std::string svg = Begin(chart.title) + YAxis(chart.y_most, chart.y_label);
  for (int tick = 0; tick <= kTicks; ++tick) {
    svg += Text(kLeft + static_cast<double>(kPlotWidth) * tick / kTicks, kTop + kPlotHeight + 18,
                absl::StrFormat("%.3g", x_most * tick / kTicks), "text-anchor='middle'");
  }
  svg += Text(kLeft + kPlotWidth / 2.0, kTop + kPlotHeight + 38, chart.x_label, "text-anchor='middle'");
  for (size_t i = 0; i < chart.series.size(); ++i) {
    std::string points;
    for (const auto& [x, y] : chart.series[i].points) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", kLeft + kPlotWidth * x / x_most,
                            kTop + kPlotHeight * (1 - std::min(y, chart.y_most) / chart.y_most));
    }
    absl::StrAppendFormat(&svg, "<polyline fill='none' stroke='%s' stroke-width='2' points='%s'/>\n",
                          Color(i), points);
  }
  return svg + Frame() + Legend(names) + "</svg>\n";
}

std::string ToSvg(const BarChart& chart) {
  std::string svg = Begin(chart.title) + YAxis(100, "%");
  const double width = static_cast<double>(kPlotWidth) / std::max<size_t>(1, chart.bars.size());
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const double x = kLeft + width * (static_cast<double>(i) + 0.15);
    double y = kTop + kPlotHeight;
    for (size_t part = 0; part < chart.bars[i].parts.size(); ++part) {
      const double height = kPlotHeight * chart.bars[i].parts[part];
      y -= height;
      absl::StrAppendFormat(&svg, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>\n", x, y,
                            0.7 * width, height, Color(part));
      if (height < 14) continue;
      svg +=
          Text(x + 0.35 * width, y + height / 2 + 4, absl::StrFormat("%.1f", 100 * chart.bars[i].parts[part]),
               "text-anchor='middle' fill='white'");
    }
    svg += Text(x + 0.35 * width, kTop + kPlotHeight + 18, chart.bars[i].name, "text-anchor='middle'");
  }
  return svg + Frame() + Legend(chart.parts) + "</svg>\n";
}

}  // namespace somnus
