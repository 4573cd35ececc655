"""PCM: conversion, resampling and bounded buffers."""
