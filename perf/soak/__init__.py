"""Hours of calls, refusals and kills, and whether anything grows or is lost by them."""
