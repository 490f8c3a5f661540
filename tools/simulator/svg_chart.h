#pragma once
// Charts as SVG text: lines over two axes, and bars that are stacked from parts.

#include <string>
#include <utility>
#include <vector>

namespace somnus {

struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // by ascending x
  };

  std::string title;
  std::string x_label;
  std::string y_label;
  double y_most = 1;  // values above are cut off
  std::vector<Series> series;
};

struct BarChart {
  struct Bar {
    std::string name;
    std::vector<double> parts;  // shares of 1, as many as `parts` below
  };

  std::string title;
  std::vector<std::string> parts;
  std::vector<Bar> bars;
};

std::string ToSvg(const LineChart& chart);
std::string ToSvg(const BarChart& chart);

}  // namespace somnus
