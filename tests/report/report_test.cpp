#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/error.h"
#include "headroom/report/data.h"
#include "headroom/report/page.h"
#include "headroom/report/page_template.h"
#include "tests/support/build.h"

namespace headroom::internal {
namespace {

using testing::Builder;
using ::testing::HasSubstr;
using ::testing::Not;

Graph tiny() {
  Builder builder("tiny");
  builder.resident("x", 8).value("a", 4).value("g", 4);
  builder.op("f", 5, {"x"}, {"a"});
  builder.op("b", 6, {"a"}, {"g"}).phase = Phase::kBackward;
  builder.outputs({"g"});
  return builder.graph();
}

TEST(Report, NothingInTheDataMeansAnythingInHtml) {
  EXPECT_EQ(escape_for_html("{\"</script><!--&\": 1}"), "{\"\\u003c/script\\u003e\\u003c!--\\u0026\": 1}");
  EXPECT_EQ(escape_for_html("\xE2\x80\xA8|\xE2\x80\xA9|\xE2\x80\xAA"), "\\u2028|\\u2029|\xE2\x80\xAA");
  EXPECT_EQ(escape_for_html("\xE2\x80"), "\xE2\x80");
}

TEST(Report, ThePageHoldsTheDataOrSaysHowToBuildIt) {
  if (page_template().empty()) {
    try {
      make_report_page("{}");
      FAIL();
    } catch (const InvalidInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("report/build.py"));
    }
    return;
  }
  EXPECT_THAT(make_report_page("{\"a\": \"<\"}"), HasSubstr("id=\"data\">{\"a\": \"\\u003c\"}</script>"));
  EXPECT_THAT(make_report_page("{}"), Not(HasSubstr("{{headroom-report-data}}")));
}

TEST(Report, WhatCallersGetWrong) {
  const Graph graph = tiny();
  const Schedule schedule = store_all(graph);
  const auto message = [&](const ReportInput& input) -> std::string {
    try {
      write_report_data(input);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({graph, schedule}), "");
  const Schedule wrong = testing::steps(graph, "b");
  EXPECT_THAT(message({graph, wrong}), HasSubstr("invalid at step 0"));
  ReportInput input{graph, schedule};
  input.modules = {"one"};
  EXPECT_THAT(message(input), HasSubstr("modules must have 2 entries, one for each op, found 1"));
  input.modules = {"one", "\xFF"};
  EXPECT_THAT(message(input), HasSubstr("not UTF-8"));
  input.modules.clear();
  input.sources = {"a", "b", "c"};
  EXPECT_THAT(message(input), HasSubstr("sources must have 2 entries"));
  input.sources.clear();
  input.measured = ReportMeasurement{{1}, {1}};
  EXPECT_THAT(message(input), HasSubstr("measured moments must have 2 entries, one for each run, found 1"));
}

TEST(Report, ModulesSourcesAndMeasurementsAreInTheData) {
  const Graph graph = tiny();
  const Schedule schedule = store_all(graph);
  ReportInput input{graph, schedule};
  input.modules = {"net.layer", ""};
  input.sources = {"net.py:7", ""};
  input.measured = ReportMeasurement{{12, 17}, {12, 13}};
  input.measured->step_ns = 12;
  const std::string data = write_report_data(input);
  EXPECT_THAT(data, HasSubstr(R"("module":["net.layer",""],"source":["net.py:7",""])"));
  EXPECT_THAT(data, HasSubstr(R"("moment_bytes":[12,17],"after_bytes":[12,13],"peak_bytes":17,"step_ns":12)"));
}

}  // namespace
}  // namespace headroom::internal
