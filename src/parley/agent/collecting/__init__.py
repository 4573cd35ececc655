"""Collecting exact data: names, dates, numbers, codes and addresses that the user says."""
